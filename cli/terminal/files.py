"""Conversations and transcripts as files."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path

from edge_spec.chat import ChatSession
from edge_spec.chat.saving import write_whole
from edge_spec.chat.transcript import to_json, to_markdown
from edge_spec.errors import EdgeSpecError, SettingsError

__all__ = ["path_of", "save_as"]

_KINDS = {".md": "Markdown", ".markdown": "Markdown", ".json": "JSON"}
_CONVERSATION = "a conversation"
_LARGEST_BYTES = 64 << 20


def path_of(argument: str) -> Path:
    """The path that a person meant: quotes around it and ``~`` are understood.

    Raises:
        SettingsError: no path can be that.
    """
    text = argument.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    try:
        path = Path(text).expanduser()
        with suppress(OSError):
            path.lstat()
    except (RuntimeError, ValueError):
        raise SettingsError(f"{text[:60]!r} cannot be a path", hint="give another one") from None
    return path


def save_as(session: ChatSession, path: Path, *, thoughts: bool, force: bool) -> str:
    """Write the conversation in the form that the file's ending names; returns what that was.

    Raises:
        SettingsError: the file is there and of another kind, and there is no ``force``.
        OSError: it cannot be written.
    """
    kind = _KINDS.get(path.suffix.lower(), _CONVERSATION)
    found = _kind_of(path)
    if found not in (kind, "") and not force:
        raise SettingsError(f"{path} exists and holds {found}, not {kind}", hint="/save! writes over it")
    if kind == _CONVERSATION:
        session.save(path)
        return kind
    text = to_markdown(session.messages, thoughts=thoughts) if kind == "Markdown" else to_json(session.messages)
    write_whole(path, lambda name: _write(Path(name), text))
    return f"a transcript in {kind}"


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8", errors="replace", newline="\n")


def _kind_of(path: Path) -> str:
    """What a file holds; nothing for one that is empty or not there."""
    if path.is_dir():
        raise SettingsError(f"{path} is a directory", hint="name a file in it")
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return ""
    if not path.is_file() or (path.stat().st_size > _LARGEST_BYTES and not zipfile.is_zipfile(path)):
        return "something else"
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _CONVERSATION if "conversation.json" in archive.namelist() else "an archive"
        text = path.read_text("utf-8")
    except (ValueError, zipfile.BadZipFile, EdgeSpecError):
        return "something else"
    if text.startswith(("## System\n", "## You\n", "## Assistant\n", "## Tool\n")):
        return "Markdown"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return "another text"
    return "JSON" if isinstance(record, dict) and "messages" in record else "other JSON"
