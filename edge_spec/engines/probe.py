"""What a loaded model can do on this device, found out by trying, which ``probe_records`` remembers.

No table could tell: whether rows are bit-identical in every width depends on the kernels that this library, this
processor, these weights and this cache end up with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import cycle, islice
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from edge_spec.engines.going_back import comes_back, how_far_back
from edge_spec.engines.pool import CachedPath, CachedPool
from edge_spec.engines.probe_watch import ProbeWatch, TimeIsUp
from edge_spec.errors import BackendError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import Tree

__all__ = ["OWN_READINGS", "PLAIN", "READINGS", "ProbeResult", "Readings", "probe"]

PLAIN = Capabilities(rollback=0, takes_trees=False, widths=(1,), max_rows=1)
"""What every model can do."""

_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)

_Reading = tuple[int, int]
"""Used cells before a text, and how many tokens of it are read in every width."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Where a text is read in decodes of several widths.

    Attributes:
        every: in every width.
        lone: in single rows and in pairs besides: libraries multiply one row by other code than several, whose sums can
            be the same in all but a few places of a text.
    """

    every: tuple[_Reading, ...]
    lone: tuple[_Reading, ...] = ()

    @property
    def depth(self) -> int:
        """How long a text is at most: a longer context makes no difference."""
        return sum(self.every[-1])


READINGS = Readings(every=((24, 32), (252, 16), (508, 16)), lone=((56, 75), (300, 75)))
"""In a fresh cache, and across 256 and 512 used cells, from where on llama.cpp's attention takes other paths."""

OWN_READINGS = Readings(every=((24, 8), (100, 8)))
"""For our own kernels, which take one path at every depth and for every number of rows, tile by tile (the tests hold
them to that)."""

_TIMED = (1, 2, 4)
"""Rows of the decodes that are timed with tokens of any kind where a text of few has been read."""

_NEXT_TEXT = 41
"""A text that begins so many tokens later is another one."""

_CUTS = 4
"""How many full decodes of tokens are divided in different ways, where that is asked for."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Capabilities, and seconds of one decode by number of rows as measured in passing.

    Attributes:
        cut_short_s: the seconds after which probing was given up; 0 if it came to its end.
    """

    capabilities: Capabilities
    seconds: Mapping[int, float]
    cut_short_s: float = 0.0


def probe(
    model: CachedPool[Any],
    *,
    external: bool = False,
    lone: bool = True,
    readings: Readings = READINGS,
    company: bool = False,
    n_different: int | None = None,
    on_probe: Callable[[int, int], object] = lambda done, total: None,
    limit_s: float = inf,
    on_busy: Callable[[float], object] = lambda times: None,
    clock: Callable[[], float] = perf_counter,
) -> ProbeResult:
    """Find out what ``model`` can do; it holds no text before and after.

    Rollback: read some tokens at once and take back all but the first, or fewer. Widths: read the same text in decodes
    of one row, of two rows and so on, and compare every row bit by bit, and in a short text every cell: a copy of many
    would not fit the budget. Cells tell more: a kernel that rounds otherwise shows in most of them, but in few rows of
    logits, since activations are rounded to 8 bits on the way. A width in the middle that differs ends the class,
    whatever wider ones seem to do. Trees: decode two continuations in one call and compare with each of them alone.

    Args:
        external: the model's operators are not known, and one try proves little. What was found is tried again with a
            text divided in many ways, and has to hold for all of them.
        lone: whether a single row may count as one of several. Not where a library is known to multiply it by other
            code and most differences are hidden, as by rounding to 16 bits on the way.
        readings: where texts are read in every width.
        company: whether texts that are computed together have the bits of each alone is not known.
        n_different: how many different tokens a text has; None for any number. Where weights stay on the disk that not
            every token needs, each token that is new to the text has more of them read. What is computed of a token is
            the same, and so are the sums that might differ; seconds are those of further tokens.
        on_probe: called with tokens computed, none at first, and about the most that there may be; at the end they are
            equal.
        limit_s: how long it may take. Then the careful answer is given: of one row at a time nothing can differ from
            what plain decoding computes, since it is just that.
        on_busy: called with how many times as long as they could decodes take, if other programs seem to compute.
        clock: returns seconds.
    """
    reached = readings_in(model.n_ctx, readings.every)
    total = _n_tokens(model, reached, readings, company=company) if model.settings.exact else 1
    watch, path = ProbeWatch(on_probe, total, limit_s=limit_s, on_busy=on_busy, clock=clock), model.path()
    try:
        found = _probed(path, watch, readings, n_different, external=external, lone=lone, company=company)
    except TimeIsUp:
        model.capabilities = careful = replace(PLAIN, rollback=model.capabilities.rollback, in_company=False)
        seconds = {n: spent for n, spent in watch.fastest.items() if n == 1}
        found = ProbeResult(capabilities=careful, seconds=seconds, cut_short_s=limit_s)
    path.close()
    watch.end()
    return found


def _probed(
    model: CachedPath[Any],
    watch: ProbeWatch,
    readings: Readings,
    n_different: int | None,
    *,
    external: bool,
    lone: bool,
    company: bool,
) -> ProbeResult:
    # Any text will do, the same one every time; low ids can be control tokens.
    further = np.random.default_rng(1).integers(min(256, model.n_vocab - 1), model.n_vocab, 600).tolist()
    text = further if n_different is None else list(islice(cycle(further[:n_different]), len(further)))
    reached = readings_in(model.n_ctx, readings.every)
    rollback = how_far_back(model, text) if model.settings.exact else ANYWHERE * comes_back(model, text)
    max_rows = min(model.settings.max_rows, rollback + 1)
    can = Capabilities(rollback=rollback, takes_trees=model.settings.trees, widths=(), max_rows=max_rows)
    model.pool.capabilities = can
    if not model.settings.exact:
        # A drafter's rounding never reaches the text.
        return _probe_drafter(model, text, readings.every[0][0])
    widths = tuple(n for n in _WIDTHS if n <= max_rows)
    exact, text = _widths_alike(model, text, widths, readings, watch, lone=lone or external)
    # More rows than the widest width would be outside the class.
    most = exact[-1] if exact else max_rows
    capabilities = model.pool.capabilities = replace(can, takes_trees=False, widths=exact, max_rows=most)
    if exact and not external:
        alike = _reads_alike(model, text, min(model.n_ctx, readings.depth), watch)
        capabilities = replace(capabilities, reuse_step=int(alike))
    # From the deepest on: the text is in the cache.
    trees = model.settings.trees and all(
        _takes_trees(model, text, depth + n * third // 3) for depth, n in reversed(reached) for third in (2, 1, 0)
    )
    capabilities = replace(capabilities, takes_trees=trees)
    if external and exact:
        capabilities = _confirmed(model, capabilities, text, max_rows, watch, single=lone)
        most = capabilities.max_rows
    if company:
        in_company = bool(capabilities.reuse_step) and _keeps_company(model, text, watch)
        capabilities = replace(capabilities, in_company=in_company)
    seconds: Mapping[int, float] = watch.fastest
    if n_different is not None:
        widths = tuple(n for n in _TIMED if n <= most)
        seconds = _seconds_of(model, further[n_different % len(further) :], [capabilities.padded(n) for n in widths])
    # A decode of n rows takes as long as one of its padded width.
    return ProbeResult(
        capabilities=capabilities, seconds={n: seconds[capabilities.padded(n)] for n in widths if n <= most}
    )


def _n_tokens(model: CachedPool[Any], reached: Sequence[_Reading], readings: Readings, *, company: bool) -> int:
    """Return about how many tokens a probe computes at most."""
    n_widths = sum(n <= model.settings.max_rows for n in _WIDTHS)
    depth = min(model.n_ctx, readings.depth)
    trials = sum(n for _, n in reached) * n_widths + reached[0][1] * model.settings.max_rows
    of_company = 2 * (sum(_COMPANY) + _ROUNDS * len(_COMPANY)) if company else 0
    return trials + 2 * sum(n for _, n in readings.lone) + 5 * depth + of_company


def _seconds_of(model: CachedPath[Any], text: Sequence[int], widths: Sequence[int]) -> dict[int, float]:
    """Return the seconds of a decode of each width, of tokens that follow what is in the cache."""
    seconds, first = dict[int, float](), 0
    model.rollback(max(0, min(model.n_past, model.n_ctx - max(widths))))
    for width in widths:
        began = perf_counter()
        model.decode(Tree.sequence(text[first : first + width]))
        seconds[width] = perf_counter() - began
        model.rollback(model.n_past)
        first += width
    return seconds


def _probe_drafter(model: CachedPath[Any], text: Sequence[int], depth: int) -> ProbeResult:
    trees = model.settings.trees and _takes_trees(model, text, min(depth, model.n_ctx))
    return ProbeResult(capabilities=replace(model.capabilities, takes_trees=trees), seconds={})


def readings_in(n_ctx: int, readings: Sequence[_Reading]) -> list[_Reading]:
    """Return those that a context has room for, in whole or in part; at least one."""
    (first, n), *deeper = readings
    start = max(0, min(first, n_ctx - n))
    return [(start, min(n, n_ctx - start)), *((depth, min(n, n_ctx - depth)) for depth, n in deeper if depth < n_ctx)]


def _widths_alike(
    model: CachedPath[Any],
    text: Sequence[int],
    widths: Sequence[int],
    readings: Readings,
    watch: ProbeWatch,
    *,
    lone: bool,
) -> tuple[tuple[int, ...], Sequence[int]]:
    """Widths from 1 or 2 on, without gaps, that leave the same rows and cells; the longer of the two runs.

    To compute three rows wherever one is wanted would cost more than identity is worth. None if no two of several are
    alike: then drafts round. Also returns the text that is in the cache, read in chunks and in decodes of these widths.
    """
    runs = [tuple(widths[place:]) for place in range(min(2, len(widths)))]
    if not lone:
        runs[0] = runs[0][:1]
    every = readings_in(model.n_ctx, readings.every)
    besides = readings_in(model.n_ctx, readings.lone) if readings.lone else []
    stretches = sorted([*((*each, False) for each in every), *((*each, True) for each in besides)])
    # Where a context has no room for as many tokens as are wanted, more texts are read.
    n_every = -(-readings.every[0][1] // every[0][1])
    n_besides = -(-sum(n for _, n in readings.lone) // max(1, sum(n for _, n in besides)))
    ahead = text
    for turn in range(max(n_every, n_besides)):
        first = _NEXT_TEXT * turn % len(text)
        wanted = [each for each in stretches if (turn < n_besides and len(runs[0]) > 1) or not each[2]]
        if turn >= n_every:
            wanted = [each for each in wanted if each[2]]
        if wanted:
            ahead = [*text[first:], *text[:first]]
            model.rollback(0)
        for start, n, single in wanted:
            if single and len(runs[0]) < 2:
                continue
            if model.capabilities.rollback < ANYWHERE:
                # A recurrent model has a state at the end of a prefill, and each width goes back to that.
                model.rollback(0)
                watch.prefill(model, ahead[:start])
            else:
                _read_on(model, ahead, start, watch, runs[-1])
            is_first = (start, n) == every[0] and not single
            # Two rows are of every class, and so what they leave in the cache is like what it will be used with.
            read = runs[0][:: 1 - len(runs[0])] if single else {width for run in runs for width in run}
            left = dict[int, _Left]()
            for width in sorted(read, key=lambda width: (width == 2, -width)):
                left[width] = _read(model, ahead, start, n, width, watch, cells=is_first)
            if single:
                runs[0] = runs[0] if len(set(left.values())) == 1 else runs[0][:1]
            else:
                runs = [_alike(run, left) for run in runs]
            if is_first:
                runs = _everywhere(model, ahead, start, runs, left, watch)
    best = max(runs, key=lambda run: (len(run), -run[0]))
    return best if len(best) > 1 or len(widths) == 1 else (), ahead


_CHUNKS = (1, 7, 33, 100, 159)
"""Numbers of tokens that are read at once, by turns."""

_SMALL_CHUNK = 16
"""Smaller ones are among those."""


def _read_on(
    model: CachedPath[Any], text: Sequence[int], end: int, watch: ProbeWatch, widths: Sequence[int] = ()
) -> None:
    """Read a text up to some token, in chunks of several sizes and in decodes of some widths by turns.

    Chunks of a single token are left out where widths are given, since it may be of none of them.
    """
    chunks = _CHUNKS[1:] if widths else _CHUNKS
    turn = 0
    while model.n_past < end:
        ahead = text[model.n_past : end]
        watch.prefill(model, ahead[: chunks[turn % len(chunks)]])
        ahead = text[model.n_past : end]
        if widths and len(ahead) > (n := widths[turn % len(widths)]):
            watch.decode(model, ahead[:n])
            model.keep(range(n))
        turn += 1


@dataclass(frozen=True, kw_only=True)
class _Left:
    """What reading a text leaves: a digest of each row, and one of all cells.

    The rows themselves, of all widths, would take too much memory on a small computer.
    """

    rows: tuple[bytes, ...]
    cells: bytes


def _alike(run: tuple[int, ...], left: Mapping[int, _Left]) -> tuple[int, ...]:
    """Return the widths of a run, from its beginning, that left the same as its first one."""
    n = next((place for place, width in enumerate(run) if left[width] != left[run[0]]), len(run))
    return run[:n]


def _read(
    model: CachedPath[Any], text: Sequence[int], start: int, n: int, width: int, watch: ProbeWatch, *, cells: bool
) -> _Left:
    """Read ``n`` tokens after the first ``start`` ones in decodes of ``width`` rows.

    Where the last decode has more rows than tokens are left, the others go the way of rejected drafts.
    """
    model.rollback(start)
    rows: list[bytes] = []
    while model.n_past < start + n:
        computed = watch.decode(model, text[model.n_past : model.n_past + width])
        kept = min(width, start + n - model.n_past)
        rows += [_digest(row.data) for row in computed[:kept]]
        model.keep(range(kept))
    return _Left(rows=tuple(rows), cells=_digest(model.save()) if cells else b"")


def _digest(values: bytes | memoryview) -> bytes:
    return blake2b(values, digest_size=16).digest()


def _everywhere(
    model: CachedPath[Any],
    text: Sequence[int],
    start: int,
    runs: Sequence[tuple[int, ...]],
    left: Mapping[int, _Left],
    watch: ProbeWatch,
) -> list[tuple[int, ...]]:
    """Return the widths of runs, from their beginning, whose widest gives the same rows wherever a decode begins."""
    known: dict[tuple[int, tuple[bytes, ...]], bool] = {}
    found = list[tuple[int, ...]]()
    for run in runs:
        rows = left[run[0]].rows
        while len(run) > 1:
            asked = run[-1], rows
            if asked not in known:
                known[asked] = _holds_everywhere(model, text, start, *asked, watch)
            if known[asked]:
                break
            run = run[:-1]
        found.append(run)
    return found


def _holds_everywhere(
    model: CachedPath[Any], text: Sequence[int], start: int, width: int, rows: Sequence[bytes], watch: ProbeWatch
) -> bool:
    """Return whether decodes of ``width`` rows give the ``rows`` after ``start`` tokens from wherever they begin."""
    model.rollback(start)
    for place in range(len(rows)):
        computed = watch.decode(model, text[start + place : start + place + width])[: len(rows) - place]
        if any(_digest(row.data) != wanted for row, wanted in zip(computed, rows[place:], strict=False)):
            return False
        model.keep([0])
    return True


def _confirmed(
    model: CachedPath[Any],
    capabilities: Capabilities,
    text: Sequence[int],
    max_rows: int,
    watch: ProbeWatch,
    *,
    single: bool,
) -> Capabilities:
    """Return what was found if it holds, or holds where single rows are padded.

    Else only what holds for every model.
    """
    wider = tuple(n for n in capabilities.widths if n > 1)
    # Where every row is computed alone, there are no others that it could differ from.
    for widths in dict.fromkeys((capabilities.widths, wider) if single or not wider else (wider,)):
        model.pool.capabilities = replace(capabilities, widths=widths)
        if widths and _holds(model, text, watch):
            break
    else:
        model.pool.capabilities = replace(capabilities, widths=(), max_rows=max_rows)
    model.rollback(0)
    return model.capabilities


def _holds(model: CachedPath[Any], text: Sequence[int], watch: ProbeWatch) -> bool:
    """Return whether a row has the same bits at every place in a decode, whatever the number of rows."""
    wide = min(model.capabilities.max_rows, model.n_ctx)
    model.rollback(0)
    watch.prefill(model, text[: max(0, min(READINGS.every[0][0], model.n_ctx - _CUTS * wide))])
    cut = 0
    while cut < _CUTS * wide and model.n_past + wide <= model.n_ctx:
        ahead = text[model.n_past : model.n_past + wide]
        rows = watch.decode(model, ahead).copy()
        model.rollback(model.n_past)
        for first in range(wide):
            n = min(1 + cut % wide, wide - first)
            if not np.array_equal(watch.decode(model, ahead[first : first + n]), rows[first : first + n]):
                return False
            model.keep([0])
            cut += 1
    return True


def _reads_alike(model: CachedPath[Any], text: Sequence[int], depth: int, watch: ProbeWatch) -> bool:
    """Return whether a text leaves the same cells read at once, in other chunks, and in decodes of all widths.

    Rows after it show it: each of them depends on all cells. What is in the cache was read in chunks and in decodes by
    turns; where it is not like what is read at once, chunks are tried alone, since there were widths among the decodes
    that have turned out to be others. Chunks are halved, too: what was found serves where smaller ones are read.
    """
    depth = min(depth, model.n_ctx - 4)
    if depth < 12:
        return False

    def rows_after() -> list[bytes]:
        n = min(4, model.capabilities.max_rows)
        return [_digest(row.data) for row in watch.decode(model, text[depth : depth + n])]

    model.rollback(min(model.n_past, depth - sum(_CHUNKS[:2])))
    _read_on(model, text, depth, watch)
    by_turns = rows_after()
    model.rollback(0)
    watch.prefill(model, text[:depth])
    at_once = rows_after()
    if at_once != by_turns:
        model.rollback(0)
        _read_on(model, text, depth, watch)
        if rows_after() != at_once:
            return False
    chunk = min(depth, model.settings.prefill_chunk)
    halves = [chunk >> n for n in range(1, chunk.bit_length()) if chunk >> n >= _SMALL_CHUNK]
    if halves:
        model.rollback(0)
        for size in cycle(halves):
            if model.n_past == depth:
                break
            watch.prefill(model, text[model.n_past : min(model.n_past + size, depth)])
        if rows_after() != at_once:
            return False
    model.rollback(0)
    turn = 0
    while model.n_past < depth:
        n = min(depth - model.n_past, 1 + turn % model.capabilities.max_rows)
        watch.decode(model, text[model.n_past : model.n_past + n])
        model.keep(range(n))
        turn += 1
    return rows_after() == at_once


_COMPANY = (300, 3, 200, 9, 40)
"""How long texts are that are tried in company: more than 512 cells together with what is written, three of them, too.
"""

_ROUNDS = 8


def _keeps_company(model: CachedPath[Any], text: Sequence[int], watch: ProbeWatch) -> bool:
    """Return whether texts that are read and written together have the rows and cells that each has alone.

    They are read in pieces by turns, and written in changing order with drafts that are dropped. In the middle one is
    forked, which shares its cells from then on, and another one is read again, in cells that others left.

    Args:
        text: whose beginning is in the cache; it is the longest of them.
    """
    pool, most = model.pool, model.capabilities.max_rows
    # Another one is there already.
    n = min(len(_COMPANY), most, model.settings.max_rows - 1)
    if pool.max_paths == 1 or n < 2:
        return False
    room = min(model.n_ctx, pool.n_cells // n) - _ROUNDS - 1
    if room < 2:
        return False
    lengths = sorted(min(length, room) for length in _COMPANY[:n])
    texts = [[*text[_NEXT_TEXT * number :], *text] for number in reversed(range(n))]
    alone = list[_Left]()
    model.rollback(min(model.n_past, lengths[-1]))
    for each, length in zip(reversed(texts), reversed(lengths), strict=True):
        watch.prefill(model, each[model.n_past : length])
        alone.append(_read(model, each, length, _ROUNDS, 1, watch, cells=True))
        model.rollback(0)
    alone.reverse()
    paths: list[Path] = [pool.path() for _ in texts]
    waiting = list[Path]()
    rows: list[list[bytes]] = [[] for _ in texts]
    try:
        for _ in range(2):
            pieces = zip(paths, texts, lengths, strict=True)
            pool.prefill([(path, each[path.n_past : (path.n_past + length + 1) // 2]) for path, each, length in pieces])
            watch.count(sum(lengths) // 4)
        for path, each, length in zip(paths, texts, lengths, strict=True):
            watch.prefill(path, each[path.n_past : length])
        for turn in range(_ROUNDS):
            if turn == _ROUNDS // 2:
                n_past, forked = paths[0].n_past, paths[1]
                paths[0].close()
                paths[:2] = pool.path(), forked.fork(forked.n_past)
                waiting.append(forked)
                watch.prefill(paths[0], texts[0][:n_past])
            order = range(n)[:: -1 if turn % 2 else 1]
            drafts = [text[: min(2, most // n - 1) * ((turn + place) % 2)] for place in order]
            trees = [
                (paths[place], Tree.sequence([texts[place][lengths[place] + turn], *draft]))
                for place, draft in zip(order, drafts, strict=True)
            ]
            for place, computed in zip(order, pool.decode(trees), strict=True):
                rows[place].append(_digest(computed[0].data))
            for path, _ in trees:
                path.keep([0])
            watch.count(sum(len(tree) for _, tree in trees))
        left = [_Left(rows=tuple(each), cells=_digest(path.save())) for each, path in zip(rows, paths, strict=True)]
    finally:
        for path in (*paths, *waiting):
            path.close()
    return left == alone


def _takes_trees(model: CachedPath[Any], text: Sequence[int], depth: int) -> bool:
    """Return whether two branches in a decode give the rows of two sequences: the same bits if that is wanted."""
    n = min(4, model.capabilities.max_rows)
    if n < 3:
        return False
    model.rollback(min(depth, model.n_past))
    model.prefill(text[model.n_past : depth])
    root, first, side, deep = text[depth : depth + 4]
    try:
        together = model.decode(Tree((root, first, side, deep)[:n], (-1, 0, 0, 2)[:n])).copy()
    except BackendError:
        return False
    model.rollback(model.n_past)
    alone = model.decode(Tree.sequence((root, side, deep)[: n - 1])).copy()
    model.rollback(model.n_past)
    branch = together[[0, 2, 3][: n - 1]]
    # A NaN differs from everything it is compared with, so it says nothing about trees.
    if model.settings.exact:
        return np.array_equal(branch, alone, equal_nan=True)
    numbers = alone[np.isfinite(alone)]
    near = 1e-3 + (0.05 * float(numbers.std()) if numbers.size else 0.0)
    return np.allclose(branch, alone, atol=near, equal_nan=True)
