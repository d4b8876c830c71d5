"""Save and load conversations as files.

A file is a ZIP archive, whose checksums reveal damage: ``conversation.json`` holds the text and its positions in
tokens, ``caches/NAME`` what the model NAME had in its cache. Caches that are damaged, or of another model or other
settings of an engine, are ignored, and the text is read again.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from edge_spec.chat.chat_model import ChatModel
from edge_spec.chat.conversation import Message
from edge_spec.errors import BAD_RECORD, Arguments, BudgetExceeded, EdgeSpecError, Sentence, StateError
from edge_spec.foreign import BAD_ARCHIVE, open_regular, parse_json
from edge_spec.generation.suspended_caches import SuspendedCaches
from edge_spec.models.beside import write_whole
from edge_spec.models.gguf.types import KV_TYPES
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["other_types", "read_record", "restore", "save", "saved_profile", "to_json", "to_markdown"]

StrPath = str | os.PathLike[str]

VERSION = 1

_FORMAT = "edge-spec conversation"
_TEXT, _CACHES = "conversation.json", "caches/"
_SMALL_TEXT_BYTES = 1 << 18
"""A conversation of this size fits the reserve of the budget."""

_BEGINNING_BYTES = 1 << 14
_PROFILE = re.compile(rb'\{"format": "[^"]*", "version": \d+, "profile": (\{[^{}]*\})')
"""The beginning of a record: its profile stands before what was said."""

_LARGEST_TEXT_BYTES = 64 << 20
_MEMORY_PER_BYTE = 48
"""The most memory that a byte of JSON takes once it is parsed."""

_CHUNK_BYTES = 1 << 20
_READ_AGAIN = "the conversation is read again"


def save(
    path: StrPath, conversation: Mapping[str, Any], profile: NumericsProfile, caches: SuspendedCaches | None
) -> None:
    """Write a conversation; an existing one is replaced only when the new one is complete.

    Args:
        conversation: ``ChatSession.to_json``.
        caches: what the models have in their caches of it.

    Raises:
        StateError: the file is there, and is something else. OSError: it cannot be written.
    """
    _require_conversation(Path(path))
    record = {
        "format": _FORMAT,
        "version": VERSION,
        "profile": {"name": profile.name, "engine": profile.engine, **dict(profile.facts)},
        "cached": list(caches.text) if caches else [],
        **conversation,
    }

    def write(name: str) -> None:
        with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(_TEXT, json.dumps(record, ensure_ascii=False))
            for model, state in (caches.states if caches else {}).items():
                # Write in chunks: in one piece, a compressed copy of all of it would be in memory, too.
                with archive.open(_CACHES + model, "w", force_zip64=True) as file:
                    for start in range(0, len(state), _CHUNK_BYTES):
                        file.write(memoryview(state)[start : start + _CHUNK_BYTES])

    write_whole(path, write)


def _require_conversation(path: Path) -> None:
    """Raise if the file exists and is not a conversation.

    Raises:
        StateError: the file holds something else.
    """
    with suppress(OSError):
        if not path.is_file() or not path.stat().st_size:
            return
        with suppress(*BAD_ARCHIVE), zipfile.ZipFile(path) as archive:
            if _TEXT in archive.namelist():
                return
        raise StateError(f"{path} is there already, and not a conversation", hint="give another name, or remove it")


def restore(kind: Callable[..., Any], model: ChatModel, path: StrPath, on_notice: Callable[[str], object]) -> Any:
    """Return the conversation in a file, of the class ``ChatSession`` or one derived from it; see ``load`` there."""
    record = read_record(path, model)
    try:
        messages = [Message.from_json(message) for message in record["messages"]]
        options = dict(record["options"])
        saved = record["profile"]
        of_another = saved.get("file") != dict(model.profile.facts).get("file")
        biases = options.pop("logit_bias", {})
        if biases and not of_another:
            options["logit_bias"] = {int(token): bias for token, bias in biases.items()}
        session = kind(
            model, messages=messages, on_notice=on_notice, template_options=record["template_options"], **options
        )
        if of_another:
            # Its numbers of tokens mean others here.
            again = "{again} without its {logit_bias}" if biases else "{again}"
            on_notice(
                Sentence(
                    f"{{path}} was saved with another model; {again}, and a save replaces what that model had read",
                    path=os.fspath(path),
                    again=_READ_AGAIN,
                )
            )
            return session
        caches, departs = None, False
        if saved["name"] != model.profile.name:
            on_notice(_other_settings(os.fspath(path), saved, model.profile))
            departs = True
        elif record["cached"]:
            states = _states(Path(path), model)
            if states is None:
                on_notice(f"the caches in {path} are damaged, or do not fit the memory; {_READ_AGAIN}")
                departs = True
            else:
                caches = SuspendedCaches(states=states, text=tuple(model.prompts.known(record["cached"])))
        session.resume_at(record, caches, departs=departs)
        return session
    except EdgeSpecError as error:
        raise StateError(f"{path} cannot be continued: {error.message}", hint=error.hint) from None
    except BAD_RECORD as error:
        raise _damaged(path) from error


def other_types(saved: Mapping[str, Any], profile: NumericsProfile) -> tuple[str, str] | None:
    """Return the types of keys and values in the facts of a saved profile; None if they are those of ``profile``, are
    no types, or if it is of another engine or model."""
    here = {"engine": profile.engine, **dict(profile.facts)}
    kinds = str(saved.get("kv")).split("/")
    is_same = all(saved.get(name) == here.get(name) for name in ("engine", "file"))
    if not is_same or saved.get("kv") == here.get("kv") or len(kinds) != 2 or not {*kinds} <= KV_TYPES.keys():
        return None
    return kinds[0], kinds[1]


def _other_settings(path: str, saved: Mapping[str, Any], profile: NumericsProfile) -> str:
    """Return a sentence about a profile that is not the one that a conversation was saved under."""
    kinds = other_types(saved, profile)
    if kinds is None:
        return f"{path} was saved with other settings of the engine; {_READ_AGAIN}"
    return Sentence(
        "{path} was saved with keys and values cached as {kinds} instead of {here}; {again}, and {instead} would avoid "
        "that",
        path=path,
        kinds="/".join(kinds),
        here=dict(profile.facts)["kv"],
        again=_READ_AGAIN,
        instead=Arguments(zip(("kv_k", "kv_v"), kinds, strict=True)),
    )


def read_record(path: StrPath, model: ChatModel) -> dict[str, Any]:
    """Return the record in a file, without the caches.

    Raises:
        StateError: it is damaged, not a conversation, or too large for the memory. OSError: it cannot be opened.
    """
    with open_regular(Path(path)) as file:
        try:
            record = _record_in(file, model)
        except BudgetExceeded as error:
            raise StateError(f"{path} is too large: {error.message}", hint=error.hint) from None
        except (*BAD_ARCHIVE, *BAD_RECORD):
            raise _damaged(path) from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise _damaged(path)
    if record.get("version") != VERSION:
        raise StateError(
            f"{path} is of version {str(record.get('version'))[:32]!r} and this program writes {VERSION}",
            hint="use the release that wrote it, or a newer one",
        )
    return record


def saved_profile(path: StrPath) -> dict[str, str]:
    """Return the facts of the numerics profile that a conversation was saved under, before a model is loaded for it.

    Only the beginning is read. If it does not tell, or cannot be read, there are no facts: ``restore`` says why.
    """
    with suppress(*BAD_ARCHIVE, *BAD_RECORD), open_regular(Path(path)) as opened, zipfile.ZipFile(opened) as archive:
        with archive.open(_TEXT) as text:
            found = _PROFILE.match(text.read(_BEGINNING_BYTES))
        facts = parse_json(found[1]) if found else {}
        return {name: value for name, value in facts.items() if isinstance(value, str)}
    return {}


def _record_in(file: BinaryIO, model: ChatModel) -> Any:
    with zipfile.ZipFile(file) as archive:
        text = archive.getinfo(_TEXT)
        if text.file_size > _LARGEST_TEXT_BYTES:
            raise ValueError("longer than any conversation")
        if text.file_size <= _SMALL_TEXT_BYTES:
            return parse_json(archive.read(text))
        needed = _MEMORY_PER_BYTE * text.file_size
        with model.ledger.lend("sessions", "a conversation from a file", needed) as took:
            took(needed)
            return parse_json(archive.read(text))


def _states(path: Path, model: ChatModel) -> dict[str, bytes] | None:
    """Return the saved caches; None if they are damaged, or do not fit the memory."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.startswith(_CACHES)]
            sizes = [entry.file_size for entry in entries]
            if sum(sizes) > model.prefix_cache.limit_bytes:
                return None
            # The sum of all caches, and one twice while its chunks are joined.
            needed = sum(sizes) + max(sizes, default=0) + _CHUNK_BYTES
            with model.ledger.lend("sessions", "caches from a file", needed) as took:
                took(needed)
                return {entry.filename[len(_CACHES) :]: _content(archive, entry) for entry in entries}
    except (*BAD_ARCHIVE, *BAD_RECORD, BudgetExceeded):
        return None


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of an entry, read in chunks: in one piece it would be in memory three times."""
    with archive.open(entry) as file:
        return b"".join(iter(lambda: file.read(_CHUNK_BYTES), b""))


def _damaged(path: StrPath) -> StateError:
    if _is_transcript(Path(path)):
        return StateError(
            f"{path} is a transcript for people to read", hint="load what was saved as a conversation (.chat)"
        )
    return StateError(f"{path} is damaged, or not a conversation", hint="load another file")


def _is_transcript(path: Path) -> bool:
    """Return whether a file begins like the output of ``to_markdown`` or ``to_json``."""
    begins = [f"## {title}\n".encode() for title in _TITLES.values()]
    with suppress(OSError), open_regular(path) as file:
        head = file.read(64)
        return head.startswith(tuple(begins)) or head.split()[:2] == [b"{", b'"messages":']
    return False


_TITLES = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}


def to_markdown(messages: Sequence[Message], *, thoughts: bool = False) -> str:
    """Return a heading and the text of every message, in order; with ``thoughts``, also what the model thought."""
    parts = []
    for message in messages:
        text = message.answer if message.role == "assistant" else message.content
        if thoughts and message.thought:
            quoted = "\n".join(f"> {line}".rstrip() for line in message.thought.splitlines())
            text = f"{quoted}\n\n{text}"
        if message.role == "assistant" and not message.is_finished:
            text = f"{text.rstrip()} …"
        parts.append(f"## {_TITLES[message.role]}\n\n{text.strip()}\n")
    return "\n".join(parts)


def to_json(messages: Sequence[Message]) -> str:
    """``{"messages": [{"role": ..., "content": ...}, ...]}``, as chat programs exchange them."""
    return json.dumps({"messages": [message.to_json() for message in messages]}, ensure_ascii=False, indent=1) + "\n"
