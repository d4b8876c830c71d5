"""The ledger: every byte has an owner and a line, and all lines together have one limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from edge_spec.errors import BudgetExceeded, Sentence
from edge_spec.memory.budget import format_size
from edge_spec.memory.usage import Usage

__all__ = ["Ledger", "Line", "loaded"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One entry.

    Attributes:
        owner: who holds it: ``target``, ``draft``, ``intermediate``, ``process``, or a session's name.
        name: what it is, such as ``KV cache``.
        predicted_bytes: what was planned.
        measured_bytes: what the engine or the system reported; None if neither did.
    """

    owner: str
    name: str
    predicted_bytes: int
    measured_bytes: int | None = None


_PROCESS = "process"
"""The owner of memory that belongs to no model."""


@cache
def _named() -> tuple[WeakKeyDictionary[Ledger, str], threading.Lock]:
    """Return the named ledgers of this process, held weakly, and the lock over them."""
    return WeakKeyDictionary(), threading.Lock()


def loaded() -> tuple[tuple[str, int], ...]:
    """Return the loaded models of this process by name, with the bytes of their ledgers, the largest first."""
    ledgers, lock = _named()
    with lock:
        known = list(ledgers.items())
    held = [(name, ledger.model_bytes) for ledger, name in known]
    return tuple(sorted((each for each in held if each[1]), key=lambda each: -each[1]))


class Ledger:
    """Lines under one limit. Usable from any thread.

    Args:
        budget_bytes: what all lines together, and the reserve, may take; None for no limit.
        reserve: the part of the budget that is kept free.
        name: the name of the model that it counts, see ``loaded``; empty to leave it out there.
        within: the ledger of the whole process, whose budget several models share; this one, with its reserve, is
            counted there until it is retired.
        kept_bytes: what is kept for it there, even while it holds less.

    Attributes:
        budget_bytes, reserve_bytes, kept_bytes: the same; ``kept_bytes`` may be lowered when everything is open.
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        *,
        reserve: int = 0,
        name: str = "",
        within: Ledger | None = None,
        kept_bytes: int = 0,
    ) -> None:
        if reserve < 0 or (budget_bytes is not None and budget_bytes < reserve):
            raise ValueError(f"a budget of {budget_bytes} with a reserve of {reserve}")
        self.budget_bytes = budget_bytes
        self.reserve_bytes = reserve
        self.kept_bytes = kept_bytes
        self._within = within
        self._shares = list[Ledger]()
        self._lines: dict[tuple[str, str], Line] = {}
        self._growth: dict[str, int] = {}
        self._gauges: dict[tuple[str, str], Callable[[], int]] = {}
        self._lent: dict[tuple[str, str], Line] = {}
        # Claims of those who share a budget are made one after the other.
        self._lock: threading.RLock = within._lock if within is not None else threading.RLock()
        if within is not None:
            within._admit(self)
        if name:
            ledgers, lock = _named()
            with lock:
                ledgers[self] = name

    def __repr__(self) -> str:
        limit = "no limit" if self.budget_bytes is None else f"a budget of {format_size(self.budget_bytes)}"
        return f"<Ledger: {format_size(self.held_bytes)} held, {limit}>"

    def __iter__(self) -> Iterator[Line]:
        with self._lock:
            return iter(tuple(map(self._gauged, self._lines.values())))

    @property
    def lent(self) -> tuple[Line, ...]:
        """The largest temporary claim of each name: see ``lend``."""
        with self._lock:
            return tuple(self._lent.values())

    @property
    def held_bytes(self) -> int:
        """The sum of all lines, and what those within it take; they are summed nowhere else."""
        with self._lock:
            return sum(line.predicted_bytes for line in self) + sum(each.share_bytes for each in self._shares)

    @property
    def share_bytes(self) -> int:
        """What it takes of the ledger that it is within."""
        return max(self.kept_bytes, self.held_bytes + self.reserve_bytes)

    @property
    def model_bytes(self) -> int:
        """Bytes of the models, caches of texts included."""
        return sum(line.predicted_bytes for line in self if line.owner != _PROCESS)

    @property
    def left_bytes(self) -> int | None:
        """Bytes that can still be claimed; None without a limit."""
        with self._lock:
            own, within = self.budget_bytes, self._within.left_bytes if self._within is not None else None
            held = self.reserve_bytes + self.held_bytes
            left = [] if own is None else [max(0, own - held)]
            if within is not None:
                left.append(within + max(0, self.kept_bytes - held))
            return min(left, default=None)

    def _admit(self, share: Ledger) -> None:
        """Count a ledger within this one.

        Raises:
            BudgetExceeded: what is kept for it exceeds what is left.
        """
        with self._lock:
            left = self.left_bytes
            if left is not None and share.share_bytes > left:
                hint = Sentence("raise {memory}, or ask for less")
                raise BudgetExceeded("the model", needed_bytes=share.share_bytes, allowed_bytes=left, hint=hint)
            self._shares.append(share)

    def claim(self, owner: str, name: str, n_bytes: int, *, hint: str = "") -> None:
        """Add a line, or add to it, before the memory is allocated.

        Raises:
            BudgetExceeded: less than that is left; nothing was added.
        """
        self.claim_all(owner, {name: n_bytes}, hint=hint)

    def claim_all(self, owner: str, lines: Mapping[str, int], *, hint: str = "") -> None:
        """Add several lines, all or none; see ``claim``."""
        if any(n_bytes < 0 for n_bytes in lines.values()):
            raise ValueError(f"{owner} claims {dict(lines)}")
        with self._lock:
            left = self.left_bytes
            wanted = sum(lines.values())
            if left is not None and wanted > left:
                what = next(iter(lines)) if len(lines) == 1 else "memory"
                raise BudgetExceeded(
                    f"the {owner}'s {what}",
                    needed_bytes=wanted,
                    allowed_bytes=left,
                    hint=hint or Sentence("raise {memory}, or ask for less"),
                )
            for name, n_bytes in lines.items():
                known = self._lines.get((owner, name))
                old = known.predicted_bytes if known is not None else 0
                self._lines[owner, name] = Line(owner=owner, name=name, predicted_bytes=old + n_bytes)

    def set(self, owner: str, name: str, n_bytes: int) -> None:
        """Set a line to ``n_bytes``; remove it if zero.

        Raises:
            BudgetExceeded: less than that is left; the line is removed.
        """
        with self._lock:
            self.release(owner, name)
            if n_bytes:
                self.claim(owner, name, n_bytes)

    def measure(self, owner: str, name: str, n_bytes: int) -> None:
        """Record the measured bytes of a line; lines that were not claimed are ignored."""
        with self._lock:
            line = self._lines.get((owner, name))
            if line is not None:
                self._lines[owner, name] = replace(line, measured_bytes=n_bytes)

    def gauge(self, owner: str, name: str, read: Callable[[], int]) -> None:
        """Measure a line with ``read`` whenever it is reported, as long as it exists."""
        with self._lock:
            self._gauges[owner, name] = read

    def _gauged(self, line: Line) -> Line:
        read = self._gauges.get((line.owner, line.name))
        return line if read is None else replace(line, measured_bytes=read())

    @contextmanager
    def lend(self, owner: str, name: str, n_bytes: int) -> Iterator[Callable[[int], None]]:
        """Claim bytes inside a ``with`` block, which gets a function to report how many it really took.

        Raises:
            BudgetExceeded: less than that is left; nothing was claimed.
        """
        self.claim(owner, name, n_bytes)
        taken: list[int] = []
        try:
            yield taken.append
        finally:
            self.give_back(owner, name, n_bytes)
            with self._lock:
                known = self._lent.get((owner, name))
                if taken and (known is None or n_bytes >= known.predicted_bytes):
                    self._lent[owner, name] = Line(
                        owner=owner, name=name, predicted_bytes=n_bytes, measured_bytes=max(taken)
                    )

    def give_back(self, owner: str, name: str, n_bytes: int) -> None:
        """Subtract bytes from a line that others may share; remove it at zero."""
        with self._lock:
            line = self._lines.pop((owner, name), None)
            if line is not None and line.predicted_bytes > n_bytes:
                self._lines[owner, name] = replace(line, predicted_bytes=line.predicted_bytes - n_bytes)

    def note_growth(self, owner: str, n_bytes: int) -> None:
        """Record by how much the process grew while something of an owner was loaded; may be negative."""
        with self._lock:
            self._growth[owner] = n_bytes

    def release(self, owner: str, name: str | None = None) -> int:
        """Remove a line, or all lines of an owner; returns the bytes that can be claimed again."""
        with self._lock:
            gone = [key for key in self._lines if key[0] == owner and name in (None, key[1])]
            for key in gone:
                self._gauges.pop(key, None)
            return sum(self._lines.pop(key).predicted_bytes for key in gone)

    def retire(self) -> None:
        """Remove the model from ``loaded``, and from the ledger that it is within; its lines can still be read."""
        ledgers, lock = _named()
        with lock:
            ledgers.pop(self, None)
        if self._within is not None:
            with self._lock:
                self._within._shares = [each for each in self._within._shares if each is not self]

    def check_integrity(self) -> None:
        """Check that no line is negative or under a wrong name, and that together they respect the limit.

        Raises:
            AssertionError: a check failed, which is a bug of this program.
        """
        with self._lock:
            for (owner, name), line in (*self._lines.items(), *self._lent.items()):
                assert (line.owner, line.name) == (owner, name), line
                assert line.predicted_bytes >= 0, line
            if self.budget_bytes is not None:
                assert self.held_bytes + self.reserve_bytes <= self.budget_bytes, self.report()

    def report(self, usage: Usage | None = None) -> dict[str, Any]:
        """Return all lines as JSON values, with the bytes of the process if given."""
        lines = tuple(self)
        found: dict[str, Any] = {
            "budget_bytes": self.budget_bytes,
            "reserve_bytes": self.reserve_bytes,
            "held_bytes": sum(line.predicted_bytes for line in lines),
            "lines": [vars(line).copy() for line in lines],
            "lent": [vars(line).copy() for line in self.lent],
            "growth_bytes": dict(self._growth),
        }
        if usage is not None:
            found["process"] = vars(usage).copy()
        return found

    def table(self, usage: Usage | None = None) -> str:
        """Return all lines as a text table."""
        rows = [
            (
                line.owner,
                line.name,
                format_size(line.predicted_bytes),
                "" if line.measured_bytes is None else format_size(line.measured_bytes),
            )
            for line in (*self, *(replace(line, name=f"{line.name}, returned") for line in self.lent))
        ]
        rows.append(("", "reserve", format_size(self.reserve_bytes), ""))
        resident = "" if usage is None else format_size(usage.resident_bytes)
        rows.append(("", "together", format_size(self.held_bytes + self.reserve_bytes), resident))
        if self.budget_bytes is not None:
            rows.append(("", "budget", format_size(self.budget_bytes), ""))
        rows.insert(0, ("owner", "line", "planned", "measured"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
            for row in rows
        )
