"""Laws of the time between replies: memory is looked after, words are not touched, and no reply is disturbed."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from chat_world import chat_model, chat_table

import edge_spec
from edge_spec import TextModel
from edge_spec.errors import Closed
from edge_spec.generation.worker import Worker, Workload
from edge_spec.memory.pressure import PressureReading, PressureWatch
from edge_spec.speculation.drafters.plain import NoDrafter

ASKED = ("Hello, who are you?", "Tell me a story about a dog.", "And then?")
PLENTY, BETWEEN, SCARCE = 1 << 40, 150, 0
NEVER_S = 1e6


@pytest.fixture
def load(probe_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TextModel]:
    def of(decide: Callable[[], int], *, every_s: float = NEVER_S, **values: Any) -> TextModel:
        now = [0.0]

        def clock() -> float:
            now[0] += 100.0
            return now[0]

        monkeypatch.setattr("edge_spec.generation.worker._IDLE_S", every_s)
        watch = PressureWatch(
            lambda: PressureReading(available_bytes=decide()), low_bytes=100, interval_s=0.0, clock=clock
        )
        asked = {"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, "speculation": "hierarchy", **values}
        return edge_spec.load("demo", watch=watch, **asked)

    return of


def converse(model: TextModel, between: Callable[[], object] = lambda: None) -> list[Any]:
    seen: list[Any] = []
    session = model.chat("You are a friend.", seed=3, max_tokens=30, on_notice=seen.append)
    for text in ASKED:
        between()
        session.send(text).read()
    return [*seen, *session.messages]


def wait_until(said: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not said():
        assert monotonic() < end, "nobody looked"
        sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_between_replies_only_what_changes_no_word_is_released(load: Callable[..., TextModel], engine: str) -> None:
    with load(lambda: PLENTY, engine=engine) as model:
        calm = converse(model)
    now = SCARCE
    with load(lambda: now, engine=engine) as model:
        profile, held = model.profile, model.ledger.held_bytes
        for _ in range(9):
            assert model.check_memory()
        assert len(model.degradations) == 2
        assert model.ledger.held_bytes < held
        assert model.profile == profile
        now = BETWEEN
        assert converse(model, model.check_memory) == calm
        now = PLENTY
        for _ in range(9):
            model.check_memory()
        assert model.degradations == ()
        assert model.ledger.held_bytes == held
        model.ledger.check_integrity()
        assert converse(model) == calm


def test_nobody_looks_while_a_reply_is_written(load: Callable[..., TextModel]) -> None:
    looks: list[int] = []

    def decide() -> int:
        looks.append(1)
        return BETWEEN

    with load(decide) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=30, ignore_eos=True)
        assert model.check_memory()
        next(reply)
        n_looks = len(looks)
        assert not model.check_memory()
        assert len(looks) == n_looks
        reply.read()
        assert model.check_memory()
    assert not model.check_memory()
    with pytest.raises(Closed):
        model.generate(ASKED[0])


@pytest.mark.long
def test_a_waiting_conversation_is_watched_without_being_asked(load: Callable[..., TextModel]) -> None:
    with load(lambda: PLENTY) as model:
        calm = converse(model)
    now = SCARCE
    with load(lambda: now, every_s=0.01) as model:
        wait_until(lambda: len(model.degradations) == 2)
        now = PLENTY
        wait_until(lambda: model.degradations == ())
        assert converse(model) == calm


@pytest.mark.long
def test_looks_at_any_time_change_no_word(load: Callable[..., TextModel]) -> None:
    with load(lambda: PLENTY) as model:
        calm = converse(model)
    model_of: list[TextModel] = []
    for run in range(3):
        rng = random.Random(run)

        def decide(rng: random.Random = rng) -> int:
            down = bool(model_of) and len(model_of[0].degradations) < 2
            return rng.choice([SCARCE if down else BETWEEN, BETWEEN, PLENTY])

        model_of.clear()
        with load(decide, every_s=0.001) as model:
            model_of.append(model)
            assert converse(model, lambda: sleep(0.02)) == calm, run
            model.ledger.check_integrity()


def test_without_a_watch_nobody_looks() -> None:
    with chat_model(chat_table(1), NoDrafter()) as model:
        model.generate("ab", seed=1, max_tokens=4).read()
        assert not model.check_memory()


class Looking(Workload[Any]):
    """Looks after memory, and fails if that is asked for."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.n_looks, self._error = 0, error

    def step(self, waits: Any) -> bool:
        raise AssertionError("nobody waits")

    def look_after_memory(self) -> None:
        self.n_looks += 1
        if self._error is not None:
            raise self._error


def threads() -> set[threading.Thread]:
    return {*threading.enumerate()}


@pytest.mark.parametrize("closes", [False, True])
def test_a_worker_ends_with_its_workload_or_when_it_is_closed(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_spec.generation.worker._IDLE_S", 0.01)
    before, work = threads(), Looking()
    worker, gone, ended = Worker(work, looks_after_memory=True), weakref.ref(work), list[int]()
    wait_until(lambda: work.n_looks > 0)
    if closes:
        for _ in range(2):
            worker.close(lambda: ended.append(1))
        assert ended == [1] and worker.is_closed
    else:
        del work
        gc.collect()
        wait_until(lambda: gone() is None)
    wait_until(lambda: threads() <= before)


@pytest.mark.parametrize(("error", "n_logged"), [(MemoryError, 0), (OSError, 0), (RuntimeError, 1), (KeyError, 1)])
def test_a_look_that_fails_is_not_the_last(
    error: type[Exception], n_logged: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge_spec.generation.worker._IDLE_S", 0.01)
    work = Looking(error)
    worker = Worker(work, looks_after_memory=True)
    wait_until(lambda: work.n_looks > 2)
    worker.close(lambda: None)
    assert len(caplog.records) == n_logged
