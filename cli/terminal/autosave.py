"""Save a conversation while it takes place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp

from edge_spec.chat import ChatSession
from edge_spec.chat.chat_model import ChatModel
from edge_spec.chat.exclusive import Stamp, exclusive, stamp_of
from edge_spec.cli.wording import in_options
from edge_spec.errors import EdgeSpecError
from edge_spec.models.beside import numbered

__all__ = ["Autosave", "conversations_in"]


class Autosave:
    """Writes the conversation after every turn, never over what another process has written.

    A file stays whole until the new one is. Where another process has written it, the conversation moves to a new
    file next to it. Caches, which can be large, are written only at the end and only into a file with a name. What
    cannot be written at the end goes to the folder for temporary files.

    Args:
        path: the file that the user named; None for a new file in ``folder``.
        folder: where conversations without a name are kept; None for nowhere.
        on_notice: called once with an error.
        way_out: advice for a person, as a clause; empty without one.

    Attributes:
        failure: why the conversation could not be saved the last time; empty if it was.
        path: where the conversation is; None before it has been saved for the first time.
        is_named: whether the user named a file.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        folder: Path | None = None,
        on_notice: Callable[[str], object],
        way_out: str = "",
    ) -> None:
        self.path = path
        self.is_named = path is not None
        self._folder = folder
        self._on_notice = on_notice
        self._way_out = way_out
        self._is_empty = True
        self.failure = ""
        self._saved: dict[str, object] | None = None
        self._saved_whole: dict[str, object] | None = None
        # The stamp of the file when it was last read or written here; None if there was none.
        self._seen = stamp_of(path)

    def load(self, model: ChatModel, path: Path, *, here: bool) -> ChatSession:
        """Return the conversation in a file.

        Args:
            here: save it there from now on; otherwise it is a new one, which must not replace what it comes from.

        Raises:
            OSError, EdgeSpecError: it cannot be read; the one before is saved as before.
        """
        # Take the stamp before reading: later changes by another process are not known.
        seen = stamp_of(path)
        session = ChatSession.load(model, path, on_notice=lambda sentence: self._on_notice(in_options(sentence)))
        if here:
            self._take(path, session)
            self._seen = seen
        else:
            self.start_new(session)
        return session

    def start_new(self, session: ChatSession) -> Path | None:
        """Begin another conversation, which must not replace the previous one.

        Returns:
            The new path of the previous one, if it was moved.
        """
        if not self.is_named or self.path is None:
            self._take(None, session)
            return None
        before = self.path
        for path in _names_beside(before):
            with exclusive(before), exclusive(path):
                if path.exists():
                    continue
                moved = before.exists()
                if moved:
                    before.rename(path)
            self._take(before, session)
            return path if moved else None
        raise AssertionError

    def save(self, session: ChatSession, *, at_the_end: bool = False) -> None:
        """Save the text, and at the end the caches too. An error becomes a notice."""
        caches = at_the_end and self.is_named
        record = session.to_json()
        is_nothing = not session.n_turns and self._is_empty
        if is_nothing or record == (self._saved_whole if caches else self._saved):
            return
        try:
            self.write(session, caches=caches)
        except (OSError, EdgeSpecError, MemoryError) as error:
            failure = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if caches:
                # The text alone is small.
                self.save(session)
                if self._saved == record:
                    said = f"saved in {self.path} without caches ({failure}): the text will be read again"
                    self._on_notice(said)
                    return
                failure = self.failure
            if failure != self.failure:
                place = f" in {self.path}" if self.path is not None else ""
                said = f"the conversation could not be saved{place}: {failure}"
                self._on_notice(f"{said}; {self._way_out}" if self._way_out else said)
            self.failure = failure
            if at_the_end:
                self._keep_elsewhere(session)

    def _keep_elsewhere(self, session: ChatSession) -> None:
        """Save to the folder for temporary files: at the end the user cannot choose another file."""
        try:
            # Use another name: the one that the user chose may be the reason of the error.
            path = Path(mkdtemp(prefix="edge-spec-")) / "last.chat"
            session.save(path, caches=False)
        except (OSError, EdgeSpecError, MemoryError):
            self._on_notice("what was said since the last save is in no file")
        else:
            self._on_notice(f"the conversation is in {path}, where files do not stay for long: move it")

    def write(self, session: ChatSession, *, caches: bool) -> None:
        """Save text and caches now.

        Raises:
            OSError, EdgeSpecError: it cannot be written.
        """
        if self.path is None and self._folder is None:
            return
        record = session.to_json()
        for path, seen in self._places():
            with exclusive(path):
                if stamp_of(path) not in (None, seen):
                    continue
                session.save(path, caches=caches)
                self._seen = stamp_of(path)
            if self.path not in (None, path):
                self._on_notice(f"another program has written {self.path}; this conversation continues in {path}")
            self.path = path
            break
        self._is_empty, self.failure, self._saved = False, "", record
        if caches:
            self._saved_whole = record

    def _take(self, path: Path | None, session: ChatSession) -> None:
        self.path, self._seen, self._is_empty = path, None, not session.n_turns
        self._saved = self._saved_whole = session.to_json()

    def _places(self) -> Iterable[tuple[Path, Stamp | None]]:
        """Return paths for the conversation, best first, with the stamp that each may have."""
        first = self.path
        if first is None:
            assert self._folder is not None
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            first = self._folder / f"{datetime.now():%Y-%m-%d-%H%M%S}.chat"
        return chain([(first, self._seen)], ((path, None) for path in _names_beside(first)))


def conversations_in(folder: Path) -> list[Path]:
    """Return the conversations without a name, the one that was written last first."""
    return sorted(filter(Path.is_file, folder.glob("*.chat")), key=lambda path: -path.stat().st_mtime_ns)


def _names_beside(path: Path) -> Iterable[Path]:
    return (numbered(path, number) for number in count(2))
