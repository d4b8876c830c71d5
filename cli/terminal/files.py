"""Conversations and transcripts as files."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

from edge_spec.chat import ChatSession
from edge_spec.chat.exclusive import Stamp, exclusive, stamp_of
from edge_spec.chat.saving import read_record, to_json, to_markdown
from edge_spec.errors import BAD_RECORD, EdgeSpecError, SettingsError, StateError
from edge_spec.foreign import parse_json, read_json
from edge_spec.models.beside import write_whole

__all__ = ["Copies", "is_same", "path_of"]

_KINDS = {".md": "Markdown", ".markdown": "Markdown", ".json": "JSON"}
_CONVERSATION = "a conversation"
_ENTRY = "conversation.json"
_LARGEST_BYTES = 64 << 20


def path_of(argument: str) -> Path:
    """Return the path that a user typed: quotes around it and ``~`` are understood.

    Raises:
        SettingsError: the text cannot be a path.
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


def is_same(path: Path, other: Path) -> bool:
    """Return whether two paths lead to one file."""
    return path.absolute() == other.absolute() or (path.exists() and other.exists() and path.samefile(other))


class Copies:
    """Copies of the conversation that ``/save`` writes.

    A file is overwritten if it is a copy from here, or if all that it says is in this conversation.
    """

    def __init__(self) -> None:
        self._written: dict[Path, Stamp | None] = {}

    def save(self, session: ChatSession, path: Path, *, thoughts: bool, force: bool) -> str:
        """Write the conversation in the format of the file's suffix; return the name of the format.

        Raises:
            SettingsError: the file holds something else, and there is no ``force``.
            OSError: it cannot be written.
        """
        kind = _KINDS.get(path.suffix.lower(), _CONVERSATION)
        found = _kind_of(path)
        text = to_markdown(session.messages, thoughts=thoughts) if kind == "Markdown" else to_json(session.messages)
        with exclusive(path):
            if found not in (kind, "") and not force:
                raise SettingsError(f"{path} exists and holds {found}, not {kind}", hint="/save! overwrites it")
            is_ours = self._written.get(path.absolute()) == stamp_of(path)
            if found and not is_ours and not force and not _is_part(path, kind, session, text):
                raise SettingsError(f"{path} holds another conversation", hint="/save! overwrites it")
            if kind == _CONVERSATION:
                session.save(path)
            else:
                write_whole(path, lambda name: _write(Path(name), text))
            self._written[path.absolute()] = stamp_of(path)
        return kind if kind == _CONVERSATION else f"a transcript in {kind}"


def _is_part(path: Path, kind: str, session: ChatSession, text: str) -> bool:
    """Return whether the conversation continues the one in a file."""
    if kind == "Markdown":
        return text.startswith(path.read_text("utf-8", errors="replace").rstrip("\n …"))
    try:
        record = read_record(path, session.model) if kind == _CONVERSATION else read_json(path)
        found = [(message["role"], message["content"]) for message in record["messages"]]
    except (StateError, *BAD_RECORD):
        return False
    ours = [(message.role, message.content) for message in session.messages[: len(found)]]
    if not found or len(ours) < len(found):
        return not found
    # The last answer may have been continued.
    return ours[:-1] == found[:-1] and ours[-1][0] == found[-1][0] and ours[-1][1].startswith(str(found[-1][1]))


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8", errors="replace", newline="\n")


def _kind_of(path: Path) -> str:
    """Return the kind of a file's content; an empty text if the file is empty or missing."""
    if path.is_dir():
        raise SettingsError(f"{path} is a directory", hint="name a file in it")
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return ""
    if not path.is_file() or (path.stat().st_size > _LARGEST_BYTES and not zipfile.is_zipfile(path)):
        return "something else"
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _CONVERSATION if _ENTRY in archive.namelist() else "an archive"
        text = path.read_text("utf-8")
    except (ValueError, zipfile.BadZipFile, EdgeSpecError):
        return "something else"
    if text.startswith(("## System\n", "## You\n", "## Assistant\n", "## Tool\n")):
        return "Markdown"
    try:
        record = parse_json(text)
    except ValueError:
        return "another text"
    return "JSON" if isinstance(record, dict) and "messages" in record else "other JSON"
