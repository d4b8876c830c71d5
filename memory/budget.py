"""Sizes of memory: as text, of a model, and the budget of a process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields

from edge_spec.errors import OutOfMemory, Sentence, SettingsError
from edge_spec.memory.device import Device, probe
from edge_spec.memory.usage import Usage, trim_heap, usage

__all__ = ["SHARE", "Budget", "Footprint", "budget_of", "format_size", "parse_memory", "parse_size", "reserve_bytes"]

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) *(?:([kmgt])(ib?|b|)|b|)", re.ASCII)
_MOST_BYTES = 1 << 60
_LEAST_BUDGET = 1 << 20


def parse_size(text: str | int, argument: str = "memory") -> int:
    """Bytes from ``2GiB``, ``2GB``, ``512MiB``, ``1.5g`` or plain bytes; a single letter counts in powers of 1,024.

    Args:
        argument: what the error names.

    Raises:
        SettingsError: it is not a size, or not above 0.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        n_bytes = text
    else:
        found = _SIZE.fullmatch(str(text).strip().lower())
        if found is None:
            raise SettingsError(
                f"is {str(text)[:32]!r}, which is not a valid size",
                argument=argument,
                hint="write 2GiB, 512MiB or 1.5g",
            )
        number, prefix, binary = found.groups()
        unit = (1000 if binary == "b" else 1024) ** " kmgt".index(prefix or " ")
        whole, _, part = number.partition(".")
        n_bytes = int(whole) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
    if not 0 < n_bytes <= _MOST_BYTES:
        what = "is less than one byte" if n_bytes <= 0 else "is more than any computer has"
        raise SettingsError(f"is {str(text)[:32]}, which {what}", argument=argument, hint="write 2GiB, 512MiB or 1.5g")
    return n_bytes


def parse_memory(memory: str | int) -> int:
    """Return bytes of a memory budget, see ``parse_size``.

    Raises:
        SettingsError: it is not a size, or so little that another unit must have been meant.
    """
    n_bytes, written = parse_size(memory), str(memory).strip()
    if n_bytes >= _LEAST_BUDGET:
        return n_bytes
    if written.isdigit():
        raise SettingsError(
            f"is {written}, and a number alone counts bytes", argument="memory", hint=f"write {written}MiB"
        )
    raise SettingsError(f"is only {written}", argument="memory", hint="write 2GiB, 512MiB or 1.5g")


def format_size(n_bytes: int) -> str:
    """MiB, or GiB from ten on, rounded up: the printed size is enough."""
    mib = -(-n_bytes // (1 << 20))
    return f"{mib:,} MiB" if mib < 10 << 10 else f"{mib / 1024:,.1f} GiB"


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model on one engine.

    Attributes:
        mapped_bytes: weights that stay mapped from their file. Decoding touches them for every token, so they count
            like memory of our own, although the system could drop them.
        expert_bytes: the same of experts, of which each token reads some: of those that stay in memory.
        paged_bytes: the same of the others, which are read from the file when a token uses them, in place of those that
            were not used for longest. They take no memory.
        repacked_bytes: weights copied into a layout that computes faster.
        copied_bytes: other weights in memory of our own.
        vocabulary_bytes: the tokenizer's tables.
        kv_cache_bytes: keys and values, for the whole context.
        state_bytes: the state of recurrent layers.
        snapshot_bytes: its states before the last rows of a decode, to roll back rejected drafts, or the inputs of
            these rows.
        copy_bytes: its states at other positions to which the text can return.
        compute_bytes: the engine's compute buffers, for a whole prefill chunk at the end of a full context.
        logits_bytes: rows of logits.
        reading_bytes: needed while a chunk of a prompt is read, and freed after it; models read one after the other.
        loading_bytes: needed while weights are loaded, and freed then.
    """

    mapped_bytes: int = 0
    expert_bytes: int = 0
    paged_bytes: int = 0
    repacked_bytes: int = 0
    copied_bytes: int = 0
    vocabulary_bytes: int = 0
    kv_cache_bytes: int = 0
    state_bytes: int = 0
    snapshot_bytes: int = 0
    copy_bytes: int = 0
    compute_bytes: int = 0
    logits_bytes: int = 0
    reading_bytes: int = 0
    loading_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}")

    @property
    def weight_bytes(self) -> int:
        """All weights in memory, mapped or not."""
        return self.mapped_bytes + self.expert_bytes + self.repacked_bytes + self.copied_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that the model holds while it runs."""
        return sum(self.lines().values())

    @property
    def loading_peak_bytes(self) -> int:
        """The most bytes that it holds before it has a context."""
        return self.weight_bytes + self.vocabulary_bytes + self.loading_bytes

    def lines(self) -> dict[str, int]:
        """Return the held bytes by name, without zeros."""
        named = {
            "weights, mapped": self.mapped_bytes,
            "experts, mapped": self.expert_bytes,
            "weights, repacked": self.repacked_bytes,
            "weights, copied": self.copied_bytes,
            "vocabulary": self.vocabulary_bytes,
            "KV cache": self.kv_cache_bytes,
            "recurrent state": self.state_bytes,
            "snapshots for drafts": self.snapshot_bytes,
            "copies of the state": self.copy_bytes,
            "compute buffers": self.compute_bytes,
            "logits rows": self.logits_bytes,
        }
        return {name: n_bytes for name, n_bytes in named.items() if n_bytes}


_LEAST_RESERVE = 8 << 20
_RESERVE_SHARE = 50
"""The reserve is a fiftieth, and at least 8 MiB: it covers errors of predictions."""


def reserve_bytes(held_bytes: int) -> int:
    """Return the bytes to keep free in addition to ``held_bytes``."""
    return max(_LEAST_RESERVE, held_bytes // _RESERVE_SHARE)


SHARE = 4, 5
"""The default budget as a share of the available memory."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory that a process may hold.

    Attributes:
        budget_bytes: in total, including what it holds already.
        held_bytes: what it holds already.
        libraries: names of those among it that models need as well.
        loaded: names of models among it, and what each holds.
        is_limit: whether the user set it, so that the whole process must stay within it while it runs. One that
            nobody named only says what to load: the program around the model may allocate whatever the system has.
        notes: sentences that the user should know.
    """

    budget_bytes: int
    held_bytes: int
    libraries: frozenset[str] = frozenset()
    loaded: tuple[tuple[str, int], ...] = ()
    is_limit: bool = True
    notes: tuple[str, ...] = ()

    @property
    def limit_bytes(self) -> int | None:
        """The most bytes of this process while it runs; None if only the system's free memory counts."""
        return self.budget_bytes if self.is_limit else None


def budget_of(
    wanted: int | None,
    *,
    device: Callable[[], Device] = probe,
    reading: Callable[[], Usage] = usage,
) -> Budget:
    """Return the budget that the argument ``memory`` of ``edge_spec.load`` stands for.

    Args:
        wanted: in bytes; four fifths of what is available if None.
        device, reading: what this computer has and this process holds; tests hand in their own.

    Raises:
        OutOfMemory: it is more than this computer could ever give.
    """
    found = device()
    # Ignore memory freed while files were read, which differs from start to start.
    trim_heap()
    held = reading().resident_bytes
    free = held + found.available_bytes
    if wanted is None:
        share = held + found.available_bytes * SHARE[0] // SHARE[1]
        return Budget(budget_bytes=share, held_bytes=held, is_limit=False)
    if wanted > max(found.total_bytes, free):
        raise OutOfMemory(
            "the memory budget",
            needed_bytes=wanted,
            available_bytes=free,
            hint=Sentence("choose a smaller {memory}, or leave it out to use most of what is free"),
        )
    if wanted > free:
        note = f"of the {format_size(wanted)} allowed, only {format_size(free)} are free now; no more will be used"
        return Budget(budget_bytes=free, held_bytes=held, notes=(note,))
    return Budget(budget_bytes=wanted, held_bytes=held)
