"""Reading what a person or a pipe gives us."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from edge_spec.errors import PromptError

__all__ = ["argument_text", "decoded", "file_or_text", "read_prompt", "read_prompts"]


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt from ``-p``, ``-f`` or standard input.

    Raises:
        PromptError: it is empty, or no UTF-8.
    """
    if prompt is not None and file is not None:
        raise click.UsageError("give the prompt with -p or with -f, not with both")
    if prompt is not None:
        text = argument_text(prompt, "the prompt")
    elif file is not None and file != "-":
        text = decoded(_bytes_of(file), file)
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise click.UsageError("no prompt; give one with -p TEXT, -f FILE, or on standard input")
    else:
        text = decoded(sys.stdin.buffer.read(), "standard input")
    if not text.strip():
        raise PromptError("the prompt is empty", hint="give some text with -p, -f or on standard input")
    return text


def argument_text(argument: str, name: str) -> str:
    """An argument's text; bytes that are no UTF-8 arrive in it as lone surrogates.

    Raises:
        PromptError: it is no UTF-8.
    """
    return decoded(argument.encode("utf-8", "surrogateescape"), name)


def file_or_text(argument: str, name: str) -> str:
    """The text of a file where the argument names one, else the argument's own.

    Raises:
        PromptError: it is no UTF-8, or looks like a file that is not there.
    """
    if not argument.strip():
        raise PromptError(f"{name} is empty", hint="give a text or the path of a file")
    if any(sign in argument for sign in "\n{=") or argument in ("true", "false"):
        return argument_text(argument, name)
    return decoded(_bytes_of(argument), argument)


def read_prompts(path: str) -> list[str]:
    """One prompt per line: plain text, or JSON objects with ``prompt``, ``text`` or ``turns``.

    Of a conversation the first turn is the prompt, of a ``text`` its first 400 characters.

    Raises:
        PromptError: there is none, a line is damaged, or the file is no UTF-8.
    """
    # Not splitlines(): JSON strings may hold what else counts as the end of a line.
    lines = enumerate(decoded(_bytes_of(path), path).split("\n"), 1)
    prompts = [_prompt_of(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not prompts:
        raise PromptError(f"{path} holds no prompts", hint="write one per line")
    return prompts


def _prompt_of(line: str, place: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        record: Any = json.loads(line)
        if "turns" in record:
            first = record["turns"][0]
            found = first["text"] if isinstance(first, dict) else first
        else:
            found = record["prompt"] if "prompt" in record else record["text"][:400]
        if isinstance(found, str) and found.strip():
            return found
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    raise PromptError(f"{place} holds no prompt", hint='write {"prompt": "..."} or plain text')


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}", hint="check the path") from None


def decoded(raw: bytes, name: str) -> str:
    """The text of bytes from ``name``; a mark that editors put in front is left out.

    Raises:
        PromptError: they are no UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8 at byte {error.start}", hint="convert it to UTF-8 first") from None
