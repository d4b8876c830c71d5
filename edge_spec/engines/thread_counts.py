"""Numbers of threads for one row, several rows and a prompt, measured once for each file and device.

One row is bound by memory, which some computers read as fast with a few of their cores as with all; more rows need
arithmetic. Where cores differ, the slow ones may help or not. So fewer threads than cores are tried, and taken only
where they are clearly faster. Texts do not depend on it: this serves engines that compute the same bits with every
number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from edge_spec.engines.pool import CachedPool
from edge_spec.engines.processor_time import processor_time
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.engines.settings import ModelSettings, ThreadCounts
from edge_spec.errors import BAD_RECORD
from edge_spec.memory.device import cores
from edge_spec.memory.hardware import describe, processor
from edge_spec.speculation.chooser.records import whole
from edge_spec.speculation.tree import Tree

__all__ = ["fastest_counts", "fewer_threads", "known_counts", "measured_once"]

_VERSION = 1

_GAIN, _LOSS = 0.03, 0.1
"""Fewer threads are faster where they save more than this share of the time, and not worth another look where they add
as much as this."""

_ROUNDS, _REPEATS = 12, 3
"""Comparisons of two numbers of threads, and the factor by which there are more at most where they disagree."""

_MOST_DIFFER = 8
"""One of so many comparisons may differ from the others."""

_WAITED = 0.1
"""Other programs compute as well if threads wait for a core for this share of the time for which they compute."""

_LIMIT_S = 20.0
"""Measuring takes at most so many seconds; a computer that is slower keeps all threads."""

_TRIES = 3
"""Loads that measure again where measurements disagree."""

_DEPTH, _PROMPT = 32, 64
"""Tokens before those that are timed, and of a prompt."""


class _Unsure(Exception):
    """Measurements disagree, or other programs compute as well."""


def fewer_threads(n: int) -> list[int]:
    """Return the numbers of threads to try beside ``n``, the largest first: halves, and the number of fast cores."""
    physical, logical = cores()
    fast = describe().n_performance_cores or 0
    # Where only fast cores have hyperthreads, the system counts them twice.
    candidates = {fast - (logical - physical), 1, *(n >> shift for shift in range(1, n.bit_length()))}
    return sorted((each for each in candidates if 1 <= each < n), reverse=True)


def fastest_counts(
    timed: Callable[[int, int], float],
    most: int,
    fewer: Sequence[int],
    rows: tuple[int, int, int],
    *,
    clock: Callable[[], float] = perf_counter,
    used: Callable[[], tuple[float, float] | None] = processor_time,
) -> ThreadCounts | None:
    """Return the numbers of threads that are clearly the fastest, ``most`` where none is; None if that is not sure.

    The more rows, the more threads they need: what all threads are fastest for is not measured with more rows.

    Args:
        timed: returns the seconds of a run of so many rows with so many threads.
        fewer: numbers of threads to try, the largest first.
        rows: of a run of one row, of the widest decode, and of a prompt.
        clock: returns seconds.
        used: see ``ProbeWatch``.
    """
    before, ends_at, counts = used(), clock() + _LIMIT_S, list[int]()
    try:
        for n_rows in rows:
            tried = takewhile(lambda n: n >= max(counts, default=1), fewer if most not in counts else ())
            counts.append(_fastest(partial(timed, n_rows), most, tried, lambda: clock() > ends_at))
    except _Unsure:
        return None
    after = used()
    if before is not None and after is not None:
        computed, waited = (now - then for now, then in zip(after, before, strict=True))
        if waited > _WAITED * computed:
            return None
    return ThreadCounts(*counts)


def _fastest(timed: Callable[[int], float], most: int, fewer: Iterable[int], is_over: Callable[[], bool]) -> int:
    """Return the fastest number of threads; raises ``_Unsure``."""
    best = most
    for n in fewer:
        ratio = _ratio(timed, best, n, is_over)
        if ratio < 1 - _GAIN:
            best = n
        elif ratio > 1 + _LOSS:
            # Still fewer would take still longer.
            break
    return best


def _ratio(timed: Callable[[int], float], usual: int, n: int, is_over: Callable[[], bool]) -> float:
    """Return how many times as long runs take with ``n`` threads as with ``usual``, by turns; raises ``_Unsure``.

    Below 1 - ``_GAIN`` only where almost all comparisons are.
    """
    ratios = list[float]()
    # The first ones bring weights into memory.
    for each in (usual, n):
        timed(each)
    for turn in range(_REPEATS * _ROUNDS):
        order = (usual, n) if turn % 2 else (n, usual)
        seconds = {each: timed(each) for each in order}
        ratios.append(seconds[n] / max(seconds[usual], 1e-9))
        if is_over():
            return inf
        if turn == 1 and min(ratios) > 1 + _LOSS:
            return min(ratios)
        if (turn + 1) % _ROUNDS:
            continue
        n_faster = sum(ratio < 1 - _GAIN for ratio in ratios)
        if len(ratios) - n_faster <= len(ratios) // _MOST_DIFFER:
            return median(ratios)
        if 2 * n_faster <= len(ratios):
            return max(1 - _GAIN, median(ratios))
    raise _Unsure


def known_counts(file: str, settings: ModelSettings, *, cache_dir: Path | None) -> ThreadCounts:
    """Return the numbers of threads that ``measured_once`` would find for a model, as far as that is known."""
    record = None if _is_fixed(settings) else _Record(file, settings, cache_dir)
    return (record and record.counts) or settings.thread_counts


def measured_once(pool: CachedPool[Any], *, file: str, cache_dir: Path | None) -> ThreadCounts:
    """Return the numbers of threads that a model is the fastest with, measured now or found the last time.

    Where the user named a number, or there is only one core, nothing is measured. Nor where some experts stay on the
    disk, whose speed would be measured, nor of drafters, which run between decodes of their targets.

    Args:
        pool: without a text before and after; closed if measuring fails.
        file: fingerprint of the model file.
        cache_dir: where numbers are kept; None for nowhere.
    """
    settings, usual = pool.settings, pool.settings.thread_counts
    if _is_fixed(settings):
        return usual
    record = _Record(file, settings, cache_dir)
    if record.counts is None and record.n_tries < _TRIES:
        try:
            record.add(_measured(pool, usual.one))
        except BaseException:
            pool.close()
            raise
    return record.counts or usual


def _is_fixed(settings: ModelSettings) -> bool:
    """Return whether a model uses as many threads as its settings say, see ``measured_once``."""
    return bool(settings.n_threads or settings.held_experts) or settings.thread_counts.one == 1 or not settings.exact


class _Record:
    """The numbers of threads of a model file with some settings, if they are known.

    Attributes:
        counts: None where they are not known.
        n_tries: how often measurements disagreed.
    """

    def __init__(self, file: str, settings: ModelSettings, cache_dir: Path | None) -> None:
        usual = settings.thread_counts
        key = json.dumps([_VERSION, "threads", file, processor(), usual, settings.n_threads, settings.kv_k])
        name = f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"
        self._path = cache_dir / FOLDER / name if cache_dir is not None else None
        self.counts: ThreadCounts | None = None
        self.n_tries = 0
        kept = read_record(self._path) if self._path is not None else {}
        with suppress(*BAD_RECORD):
            self.n_tries = whole(kept.get("tries", 0))
            counts = ThreadCounts(*(whole(n, least=1) for n in kept["threads"]))
            self.counts = counts if max(counts) <= usual.one else None

    def add(self, counts: ThreadCounts | None) -> None:
        """Keep what was measured; None where measurements disagreed."""
        self.counts, self.n_tries = counts, self.n_tries + (counts is None)
        if self._path is not None:
            write_record(self._path, {"threads": counts, "tries": self.n_tries})


def _measured(pool: CachedPool[Any], most: int) -> ThreadCounts | None:
    """Return the fastest numbers of threads of a model, or None; it holds no text before and after."""
    most_rows = pool.capabilities.max_rows
    n_prompt = max(most_rows, min(_PROMPT, pool.settings.prefill_chunk, pool.n_ctx))
    text = np.random.default_rng(1).integers(0, pool.n_vocab, max(n_prompt, _DEPTH + most_rows)).tolist()
    n_before = max(0, min(_DEPTH, pool.n_ctx - most_rows))
    path = pool.path()

    def timed(n_rows: int, n_threads: int) -> float:
        pool.threads = ThreadCounts(n_threads, n_threads, n_threads)
        is_prompt = n_rows > most_rows
        wanted = 0 if is_prompt else n_before
        if path.n_past != wanted:
            path.rollback(0)
            path.prefill(text[:wanted])
        ahead = text[wanted : wanted + n_rows]
        begun = perf_counter()
        if is_prompt:
            path.prefill(ahead)
        else:
            path.decode(Tree.sequence(ahead))
        seconds = perf_counter() - begun
        path.rollback(0 if is_prompt else wanted)
        return seconds

    try:
        return fastest_counts(timed, most, fewer_threads(most), (1, most_rows, n_prompt))
    finally:
        path.close()
        pool.threads = ThreadCounts(most, most, most)
