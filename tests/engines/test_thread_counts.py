"""Laws of numbers of threads: fewer than cores only where that is clearly faster, measured once, and never a bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounding_model import RoundingModel

from edge_spec.engines import thread_counts
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings, ThreadCounts
from edge_spec.engines.thread_counts import fastest_counts, fewer_threads, known_counts, measured_once
from edge_spec.models import inspect, resolve
from edge_spec.speculation.tree import Tree

ROWS = (1, 16, 64)
Seconds = Callable[[int, int], float]


class Computer:
    """A computer whose runs take what a function says of rows and threads, times noise, on a clock of its own."""

    def __init__(self, seconds: Seconds, noise: Callable[[], float] = lambda: 1.0, *, waits: float = 0.0) -> None:
        self.now, self.runs, self._waits = 0.0, list[tuple[int, int]](), waits
        self._seconds, self._noise = seconds, noise

    def timed(self, n_rows: int, n_threads: int) -> float:
        seconds = self._seconds(n_rows, n_threads) * self._noise()
        self.now += seconds
        self.runs.append((n_rows, n_threads))
        return seconds

    def counts(self, most: int = 4, fewer: tuple[int, ...] = (2, 1)) -> ThreadCounts | None:
        return fastest_counts(
            self.timed, most, fewer, ROWS, clock=lambda: self.now, used=lambda: (self.now, self._waits * self.now)
        )


def by_memory(n_rows: int, n_threads: int) -> float:
    """Two threads read all that the memory gives; more of them are in each other's way. Rows need arithmetic."""
    reading = 0.010 / min(n_threads, 2) * (1 + 0.1 * max(0, n_threads - 2))
    return max(reading, 0.002 * n_rows / n_threads)


def by_arithmetic(n_rows: int, n_threads: int) -> float:
    return 0.002 * (1 + n_rows) / n_threads


def alike(n_rows: int, n_threads: int) -> float:
    return 0.002 * n_rows


def wandering(chance: random.Random, size: float) -> Callable[[], float]:
    return lambda: chance.lognormvariate(0.0, size)


# --- what is chosen


def test_one_row_takes_the_threads_that_memory_needs_and_many_rows_all() -> None:
    for size in (0.0, 0.02):
        assert Computer(by_memory, wandering(random.Random(1), size)).counts() == (2, 4, 4)


def test_where_all_threads_are_the_fastest_for_a_row_nothing_else_is_measured() -> None:
    computer = Computer(by_arithmetic)
    assert computer.counts() == (4, 4, 4)
    assert {n_rows for n_rows, _ in computer.runs} == {1} and len(computer.runs) <= 6


def test_a_computer_that_is_faster_with_few_threads_at_everything_uses_few() -> None:
    assert Computer(lambda n_rows, n_threads: 0.001 * n_rows * n_threads).counts() == (1, 1, 1)


def test_all_threads_are_kept_where_fewer_are_as_fast_or_save_less_than_a_gain_that_shows() -> None:
    assert Computer(alike).counts() == (4, 4, 4)
    assert Computer(lambda n_rows, n_threads: 1.0 if n_threads == 4 else 0.98).counts() == (4, 4, 4)


@pytest.mark.parametrize("size", [0.05, 0.3, 1.0])
def test_noise_does_not_choose_fewer_threads_that_are_no_faster(size: float) -> None:
    chance = random.Random(size)
    chosen = [Computer(seconds, wandering(chance, size)).counts() for seconds in (alike, by_arithmetic) * 200]
    n_wrong = sum(counts not in (None, (4, 4, 4)) for counts in chosen)
    assert n_wrong <= 4


def test_measurements_that_disagree_are_repeated_and_then_not_trusted() -> None:
    turn = iter(range(1 << 20))
    computer = Computer(lambda n_rows, n_threads: 1e-3 if n_threads == 4 else (0.5e-3, 2e-3, 0.5e-3)[next(turn) % 3])
    assert computer.counts() is None
    assert len(computer.runs) > 40


def test_a_busy_computer_is_not_trusted() -> None:
    assert Computer(by_memory, waits=0.05).counts() == (2, 4, 4)
    assert Computer(by_memory, waits=0.5).counts() is None


def test_a_slow_computer_keeps_all_threads_after_some_seconds() -> None:
    computer = Computer(lambda n_rows, n_threads: 1e3 * by_memory(n_rows, n_threads))
    assert computer.counts() == (4, 4, 4)
    assert computer.now < 60


@pytest.mark.parametrize(
    ("cores", "fast", "fewer"),
    [
        ((4, 4), None, [2, 1]),
        ((2, 4), None, [1]),
        ((1, 2), None, []),
        ((10, 10), 4, [5, 4, 2, 1]),  # Apple M4
        ((14, 20), 12, [7, 6, 3, 1]),  # Intel: six cores with hyperthreads, eight without
    ],
)
def test_halves_and_the_fast_cores_are_tried(
    cores: tuple[int, int], fast: int | None, fewer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Described:
        n_performance_cores = fast

    monkeypatch.setattr(thread_counts, "cores", lambda: cores)
    monkeypatch.setattr(thread_counts, "describe", Described)
    assert fewer_threads(cores[0]) == fewer


# --- measured once


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ThreadCounts | None]]:
    """What measuring finds, the last first; a computer with four cores."""
    results: list[ThreadCounts | None] = []

    def measure(timed: Seconds, most: int, fewer: object, rows: tuple[int, int, int]) -> ThreadCounts | None:
        assert all(timed(n, 2) >= 0 for n in (*rows, *rows))
        return results.pop()

    monkeypatch.setattr(thread_counts, "fastest_counts", measure)
    monkeypatch.setattr("edge_spec.engines.settings.cores", lambda: (4, 4))
    yield results


def measured(folder: Path | None, file: str = "file", **values: Any) -> ThreadCounts:
    model: Any = RoundingModel(**{"n_ctx": 100} | values)
    counts = measured_once(model, file=file, cache_dir=folder)
    assert model.n_past == 0
    if folder is not None:
        assert counts == known_counts(file, model.settings, cache_dir=folder)
    return counts


FEW, ALL = ThreadCounts(2, 4, 4), ThreadCounts(4, 4, 4)


def test_threads_are_measured_once_for_a_file(tmp_path: Path, found: list[ThreadCounts | None]) -> None:
    found += [ALL, FEW]
    assert [measured(tmp_path), measured(tmp_path), measured(tmp_path, "another"), measured(tmp_path)] == [
        FEW,
        FEW,
        ALL,
        FEW,
    ]
    assert not found


def test_what_the_user_names_rules_and_drafters_are_not_measured(
    tmp_path: Path, found: list[ThreadCounts | None]
) -> None:
    found.append(FEW)
    measured(tmp_path)
    assert measured(tmp_path, n_threads=3) == (3, 3, 3)
    assert measured(tmp_path, exact=False) == measured(tmp_path, held_experts=2) == ALL


def test_a_busy_computer_is_measured_again_a_few_times(tmp_path: Path, found: list[ThreadCounts | None]) -> None:
    found += [FEW, None, None]
    assert [measured(tmp_path) for _ in range(4)] == [ALL, ALL, FEW, FEW]
    found += [None] * 3
    assert [measured(tmp_path, "another") for _ in range(5)] == [ALL] * 5
    assert not found


def test_a_damaged_record_is_measured_anew(tmp_path: Path, found: list[ThreadCounts | None]) -> None:
    found.append(FEW)
    measured(tmp_path)
    (record,) = (tmp_path / "probes").iterdir()
    for odd in ("", "[]", '{"threads": [1]}', '{"threads": [0, 4, 4]}', '{"threads": [2, 9, 4]}', '{"tries": "x"}'):
        record.write_text(odd)
        found.append(FEW)
        assert measured(tmp_path) == FEW
    assert not found


def test_without_a_folder_threads_are_measured_in_every_load(found: list[ThreadCounts | None]) -> None:
    found += [FEW, ALL]
    assert [measured(None), measured(None)] == [ALL, FEW]


def test_numbers_are_told_in_a_few_words() -> None:
    assert (str(ALL), str(FEW)) == ("4", "2 for one row, 4 for several, 4 for prompts")


# --- the bits


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_rows_have_the_same_bits_with_every_number_of_threads(probe_cache: Path) -> None:
    file = inspect(resolve("demo"))
    settings = ModelSettings(n_ctx=128, n_threads=2, prefill_chunk=32)
    pool, _ = open_onnx(transcribe(file, probe_cache / "onnx"), settings, file=file.fingerprint, cache_dir=probe_cache)
    text = np.random.default_rng(0).integers(300, pool.n_vocab, 80).tolist()
    seen = set[bytes]()
    with closing(pool), closing(pool.path()) as path:
        for counts in ((1, 1, 1), (2, 2, 2), (1, 2, 2), (2, 1, 1), (2, 1, 2), (3, 3, 3)):
            pool.threads = ThreadCounts(*counts)
            path.prefill(text[:64])
            one = path.decode(Tree.sequence(text[64:65])).tobytes()
            path.keep([0])
            several = path.decode(Tree.sequence(text[65:75])).tobytes()
            path.keep(range(10))
            seen.add(one + several + path.save())
            path.rollback(0)
    assert len(seen) == 1
