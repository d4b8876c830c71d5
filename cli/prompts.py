"""Prompts from options, files and pipes."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import click

from edge_spec.cli.printing import echo
from edge_spec.errors import BAD_RECORD, PromptError
from edge_spec.foreign import parse_json

__all__ = ["Prompt", "argument_text", "decoded", "file_or_text", "read_prompt", "read_prompts"]


class Prompt(NamedTuple):
    """A prompt from a file, with its category; empty if the file names none."""

    text: str
    category: str = ""


def read_prompt(prompt: str | None, file: str | None, words: str | None = None, *, silent_s: float = 1.0) -> str:
    """Return the prompt from ``-p``, ``-f`` or standard input, or what follows the model.

    ``-p`` is the whole prompt, and standard input is not touched. ``words`` follow what a file or standard input holds,
    the latter only where it is a pipe or a file: another program's terminal, or nothing, is not waited for.

    Args:
        silent_s: seconds after which it is said that standard input is read.

    Raises:
        PromptError: what was read is empty, or not UTF-8. UsageError: what was typed is.
    """
    if prompt is not None and file is not None:
        raise click.UsageError("give the prompt with -p or with -f, not with both")
    if prompt is not None:
        if words is not None:
            raise click.UsageError("give the prompt with -p or after the model, not both")
        text = argument_text(prompt, "the prompt")
    elif file is not None and file != "-":
        text = _without_last_break(decoded(_bytes_of(file), file))
    elif words is not None and file is None and not _is_piped():
        text = ""
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise click.UsageError("no prompt; give one after the model, with -p TEXT, -f FILE, or on standard input")
    else:
        piped = _read_standard_input(asked_for=words is None, silent_s=silent_s)
        text = _without_last_break(decoded(piped, "standard input"))
    if words is not None:
        asked = argument_text(words, "the prompt")
        text = f"{text.rstrip()}\n\n{asked}" if text.strip() else asked
    if not text.strip():
        empty = PromptError("the prompt is empty", hint="give some text with -p, -f or on standard input")
        raise empty if prompt is None and words is None else click.UsageError(str(empty))
    return text


def _without_last_break(text: str) -> str:
    """Return a text without the line break that ``echo`` and editors put after its last line."""
    return text.removesuffix("\n").removesuffix("\r")


def _is_piped() -> bool:
    """Return whether standard input is a pipe, a socket or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _read_standard_input(*, asked_for: bool, silent_s: float) -> bytes:
    """Return the whole of standard input, with a notice while a pipe stays open.

    Args:
        asked_for: whether there is no other prompt.
    """
    hint = "" if asked_for else "; -p TEXT does not read it"
    note = f"edge-spec: reading standard input until it ends{hint} ..."
    timer = threading.Timer(silent_s, lambda: echo(note, err=True))
    timer.daemon = True
    timer.start()
    try:
        return sys.stdin.buffer.read()
    finally:
        timer.cancel()


def argument_text(argument: str, name: str) -> str:
    """Return the text of a command-line value; Python passes bytes that are not UTF-8 as lone surrogates.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        return decoded(argument.encode("utf-8", "surrogateescape"), name)
    except PromptError as error:
        raise click.UsageError(str(error)) from None


def file_or_text(argument: str, name: str) -> str:
    """Return the text of a file if the value is a path, else the value itself.

    A value with a character that grammars and schemas need is a text.

    Raises:
        PromptError: it is not UTF-8, or looks like the path of a file that does not exist.
    """
    if not argument.strip():
        raise click.UsageError(f"{name} is empty; give a text or the path of a file")
    if any(sign in argument for sign in '\n{=["') or argument in ("true", "false", "null"):
        return argument_text(argument, name)
    try:
        return decoded(_bytes_of(argument), argument)
    except PromptError as error:
        raise PromptError(f"{name}: {error.message}", hint="give the path of a file, or the text itself") from None


def read_prompts(path: str) -> list[Prompt]:
    """One prompt per line: plain text, or JSON objects with ``prompt``, ``text`` or ``turns``, and a ``category``.

    The prompt is the first turn of a conversation, or the first 400 characters of a ``text``. Spec-Bench's file of
    questions works as it is.

    Raises:
        PromptError: there is none, a line is damaged, or the file is not UTF-8.
    """
    # Not splitlines(), which also splits at characters that JSON strings may contain.
    lines = enumerate(decoded(_bytes_of(path), path).split("\n"), 1)
    prompts = [_prompt_of(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not prompts:
        raise PromptError(f"{path} holds no prompts", hint="write one per line")
    return prompts


def _prompt_of(line: str, place: str) -> Prompt:
    if not line.lstrip().startswith("{"):
        return Prompt(line)
    try:
        record: Any = parse_json(line)
        if "turns" in record:
            first = record["turns"][0]
            found = first["text"] if isinstance(first, dict) else first
        else:
            found = record["prompt"] if "prompt" in record else record["text"][:400]
        if isinstance(found, str) and found.strip():
            category = record.get("category", "")
            return Prompt(found, category if isinstance(category, str) else "")
    except BAD_RECORD:
        pass
    raise PromptError(f"{place} holds no prompt", hint='write {"prompt": "..."} or plain text')


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PromptError(f"{path[:200]} cannot be read: {error.strerror}", hint="check the path") from None
    except ValueError:  # a zero byte
        raise PromptError(f"{path[:200]!r} cannot be a path", hint="check it") from None


def decoded(raw: bytes, name: str) -> str:
    """Return the text of bytes from ``name``, without a byte order mark.

    Raises:
        PromptError: they are not UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8 at byte {error.start}", hint="convert it to UTF-8 first") from None
