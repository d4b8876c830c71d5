"""Keeps a conversation on the disk while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from edge_spec.chat import ChatSession
from edge_spec.errors import EdgeSpecError

__all__ = ["Autosave"]


class Autosave:
    """Writes the conversation after every turn; what was there stays whole until the new file is.

    Args:
        path: the file; None for nowhere.
        is_own: the person named the file. Otherwise it is where the last talk lies: the one before is kept beside
            it, and caches, which can be large, are never written.
        on_notice: told what went wrong, once.
    """

    def __init__(self, path: Path | None, *, is_own: bool, on_notice: Callable[[str], object]) -> None:
        self.path = path
        self.is_own = is_own
        self._on_notice = on_notice
        self._is_first = True
        self._said = ""
        self._saved: dict[str, object] | None = None
        self._saved_whole: dict[str, object] | None = None
        # As we left the file, or found it; None if there was none.
        self._seen = _stamp(path)

    @property
    def previous(self) -> Path | None:
        """Where the talk before the last one lies."""
        return self.path.with_name("previous.chat") if self.path is not None and not self.is_own else None

    def go_on_in(self, path: Path, session: ChatSession) -> None:
        """The conversation comes out of this file, which is so as good as saved."""
        self.path = path
        self._is_first = False
        self._saved = self._saved_whole = session.to_json()
        self._seen = _stamp(path)

    def save(self, session: ChatSession, *, at_the_end: bool = False) -> None:
        """Write what is new: the text, and at the end the caches too."""
        if self.path is None:
            return
        caches = at_the_end and self.is_own
        record = session.to_json()
        if not session.n_turns and self._is_first:
            return
        if record == (self._saved_whole if caches else self._saved):
            return
        try:
            if not self.is_own:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self._is_first and self.previous is not None and self.path.exists():
                    self.path.replace(self.previous)
            if self.is_own and _stamp(self.path) != self._seen:
                # Another program talks in the same file: neither shall lose what was said.
                self.path = _free_name(self.path)
                self._on_notice(f"another program has written the session file; this talk goes on in {self.path}")
            session.save(self.path, caches=caches)
            self._seen = _stamp(self.path)
        except (OSError, EdgeSpecError, MemoryError) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if said != self._said:
                self._on_notice(f"the conversation could not be saved in {self.path}: {said}; /save FILE tries another")
            self._said = said
            return
        self._is_first = False
        self._said = ""
        self._saved = record
        if caches:
            self._saved_whole = record


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """What tells one content of a file from another; None if there is none."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found is not None else None


def _free_name(path: Path) -> Path:
    """A name beside ``path`` that no file has."""
    return next(
        name for number in count(2) if not (name := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists()
    )
