"""Laws of a family under pressure: the text is the same on every lossless rung, and memory really comes back.

By default a few runs; two hundred with ``EDGE_SPEC_SLOW_TESTS=1``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec import TextModel
from edge_spec.errors import BackendError
from edge_spec.memory.pressure import PressureWatch, Squeeze

N_RUNS = 200 if os.environ.get("EDGE_SPEC_SLOW_TESTS") else 12
ASKED = ("Hello, who are you?", "Tell me a story about a dog.", "And then?", "Where is it?")
PLENTY, SCARCE = 1 << 40, 0


class Squeezer:
    """A memory that gets scarce and plentiful when it is told to, and time that flies."""

    def __init__(self, decide: Callable[[], int]) -> None:
        self._decide = decide
        self.now = 0.0

    def clock(self) -> float:
        self.now += 100.0
        return self.now

    def watch(self) -> PressureWatch:
        def look() -> Squeeze:
            return Squeeze(available_bytes=self._decide())

        return PressureWatch(look, low_bytes=100, interval_s=0.0, clock=self.clock)


@pytest.fixture
def load(probe_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TextModel]:
    def of(decide: Callable[[], int], **values: Any) -> TextModel:
        squeezer = Squeezer(decide)
        # The ladder's patience is measured by the same clock.
        monkeypatch.setattr("edge_spec.relief.monotonic", squeezer.clock)
        asked = {"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, "speculation": "hierarchy", **values}
        return edge_spec.load("demo", watch=squeezer.watch(), **asked)

    return of


def talk(model: TextModel, **values: Any) -> list[Any]:
    seen: list[Any] = []
    session = model.chat("You are a friend.", seed=3, max_tokens=40, on_notice=seen.append, **values)
    for text in ASKED:
        session.send(text).read()
    return [*seen, *session.messages]


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_squeezed_talk_is_word_for_word_the_unsqueezed_one(load: Callable[..., TextModel], engine: str) -> None:
    with load(lambda: PLENTY, engine=engine) as model:
        calm = talk(model)
        assert model.given_up == ()
    given_up: set[tuple[str, ...]] = set()
    for run in range(N_RUNS // 2):
        rng = random.Random(run)

        def decide(rng: random.Random = rng) -> int:
            given_up.add(model.given_up)
            # Never down to the rungs that change the text.
            down = len(model.given_up) < 3 and rng.random() < 0.25
            return SCARCE if down else PLENTY if rng.random() < 0.2 else 150

        with load(decide, engine=engine) as model:
            assert talk(model) == calm, run
            model.ledger.check_integrity()
    assert {len(rungs) for rungs in given_up} == {0, 1, 2, 3}


@pytest.mark.parametrize("mode", ["sequence", "tree", "ngram", "off", "auto"])
def test_every_mode_can_be_squeezed(load: Callable[..., TextModel], mode: str) -> None:
    with load(lambda: PLENTY, speculation=mode) as model:
        calm = talk(model)
    n_lossless = {"sequence": 2, "tree": 2, "auto": 2, "ngram": 1, "off": 0}[mode]
    with load(lambda: SCARCE if len(model.given_up) < n_lossless else 150, speculation=mode) as model:
        assert talk(model) == calm
        assert len(model.given_up) == n_lossless


def test_every_rung_gives_memory_back(load: Callable[..., TextModel]) -> None:
    wanted = 0
    with load(lambda: SCARCE if len(model.given_up) < wanted else 150, n_ctx=1024) as model:
        held = []
        for wanted in range(6):
            model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True).read()
            assert len(model.given_up) == wanted
            held.append(model.ledger.held_bytes)
        # Short drafts hold as much as long ones; what waits on the disk was nothing here.
        assert held[0] == held[1] > held[2] > held[3] > held[4] > held[5]
        assert model.n_ctx == 256


RUNGS = """
import gc, sys
import edge_spec, edge_spec.relief
from edge_spec.memory import usage
from edge_spec.memory.pressure import PressureWatch, Squeeze

now, wanted = [0.0], 0

def clock():
    now[0] += 100
    return now[0]

def look():
    return Squeeze(available_bytes=0 if len(model.given_up) < wanted else 150)

edge_spec.relief.monotonic = clock
watch = PressureWatch(look, low_bytes=100, interval_s=0, clock=clock)
asked = dict(engine=sys.argv[1], speculation="hierarchy", n_ctx=1024, n_threads=1, cache_dir=sys.argv[2], watch=watch)
with edge_spec.load("demo", **asked) as model:
    for wanted in range(4):
        model.generate("Hello!", seed=1, max_tokens=40, ignore_eos=True).read()
        gc.collect()
        print(usage().unique_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measured as Linux counts")
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_the_system_sees_memory_come_back(engine: str, probe_cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNGS, engine, str(probe_cache)], check=True, capture_output=True, text=True
    )
    _, short_drafts, no_middle, no_drafter = map(int, done.stdout.split())
    assert short_drafts - (1 << 20) > no_middle > no_drafter + (1 << 19)


def test_a_smaller_context_is_announced_and_goes_on(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE if len(model.given_up) < 4 else 150) as model:
        seen = talk(model)
        notices = [sentence for sentence in seen if isinstance(sentence, str)]
        assert any("context is dropped" in sentence for sentence in notices)
        assert model.n_ctx == 256
        assert len([message for message in seen if not isinstance(message, str)]) == 1 + 2 * len(ASKED)


def test_at_the_end_of_the_ladder_a_reply_stops_cleanly(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert reply.finish_reason == "memory"
        assert any("stops here" in notice for notice in reply.notices)
        session = model.chat(seed=1)
        session.send("Hello!").read()
        assert session.messages[-1].finish_reason == "memory"


def test_a_context_that_cannot_be_made_anew_leaves_the_old_one(
    load: Callable[..., TextModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(lambda: SCARCE if len(model.given_up) < 3 else 150) as model:
        calm = talk(model)
    refused: list[int] = []
    with load(lambda: 150 if refused else SCARCE) as model:
        family = model._relief._family  # type: ignore[union-attr]
        again = family.target_again

        def refuse(n_ctx: int, **values: Any) -> Any:
            if n_ctx < 512:
                refused.append(n_ctx)
                raise BackendError("no memory")
            return again(n_ctx, **values)

        monkeypatch.setattr(family, "target_again", refuse)
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        session.send(ASKED[0]).read()
        if session.messages[-1].finish_reason == "memory":
            session.continue_answer().read()
        assert (model.n_ctx, len(refused)) == (512, 2)
        assert session.messages[-1].content == next(
            message.content for message in calm if not isinstance(message, str) and message.role == "assistant"
        )
