"""Laws of lossless degradation: the text stays as it is, and memory really comes back."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scarce_memory import ASKED, PLENTY, SCARCE, converse

import edge_spec
from edge_spec import TextModel
from edge_spec.memory import usage
from edge_spec.memory.pressure import PressureReading, PressureWatch, system_watch
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.modes import MODES, DraftModels, Mode

pytestmark = pytest.mark.long


@pytest.mark.parametrize("n_runs", [6, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_conversation_under_pressure_is_word_for_word_the_one_without(
    load: Callable[..., TextModel], engine: str, n_runs: int
) -> None:
    with load(lambda: PLENTY, engine=engine) as model:
        calm = converse(model)
        assert model.degradations == ()
    degradations: set[tuple[str, ...]] = set()
    for run in range(n_runs):
        rng = random.Random(run)

        def decide(rng: random.Random = rng) -> int:
            degradations.add(model.degradations)
            # Never down to the steps that change the text.
            down = len(model.degradations) < 2 and rng.random() < 0.25
            return SCARCE if down else PLENTY if rng.random() < 0.2 else 150

        with load(decide, engine=engine) as model:
            assert converse(model) == calm, run
            model.ledger.check_integrity()
    assert {len(steps) for steps in degradations} == {0, 1, 2}


@pytest.mark.parametrize("mode", ["sequence", "tree", "ngram", "off", "auto"])
def test_every_mode_keeps_its_text_under_pressure(load: Callable[..., TextModel], mode: str) -> None:
    with load(lambda: PLENTY, speculation=mode) as model:
        calm = converse(model)
    n_lossless = {"sequence": 1, "tree": 1, "auto": 1, "ngram": 0, "off": 0}[mode]
    with load(lambda: SCARCE if len(model.degradations) < n_lossless else 150, speculation=mode) as model:
        assert converse(model) == calm
        assert len(model.degradations) == n_lossless


@pytest.mark.parametrize(("engine", "kinds"), [("llama", ["q8_0/f16", "q8_0/q8_0"]), ("onnx", ["f16/f16"])])
def test_every_step_gives_memory_back(load: Callable[..., TextModel], engine: str, kinds: list[str]) -> None:
    wanted = 0
    with load(lambda: SCARCE if len(model.degradations) < wanted else 150, n_ctx=None, engine=engine) as model:
        held, caches = [], []
        # Both drafting models are dropped, then caches get smaller, and the context twice.
        for wanted in range(1 + 2 + len(kinds) - 1 + 2):
            model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True).read()
            assert len(model.degradations) == wanted
            held.append(model.ledger.held_bytes)
            caches.append(dict(model.profile.facts)["kv"])
            model.ledger.check_integrity()
        assert all(high > low for high, low in itertools.pairwise(held))
        assert model.n_ctx == 256
        assert list(dict.fromkeys(caches)) == kinds


STEPS = """
import gc, sys
import edge_spec
from edge_spec.memory import usage
from edge_spec.memory.pressure import PressureWatch, PressureReading

now, wanted = [0.0], 0

def clock():
    now[0] += 100
    return now[0]

def look():
    return PressureReading(available_bytes=0 if len(model.degradations) < wanted else 150)

watch = PressureWatch(look, low_bytes=100, interval_s=0, clock=clock)
asked = dict(engine=sys.argv[1], speculation="hierarchy", n_ctx=1024, n_threads=1, cache_dir=sys.argv[2], watch=watch)
with edge_spec.load("demo", **asked) as model:
    for wanted in range(3):
        model.generate("Hello!", seed=1, max_tokens=40, ignore_eos=True).read()
        gc.collect()
        print(usage().unique_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measured as Linux counts")
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_the_system_sees_memory_come_back(engine: str, probe_cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, engine, str(probe_cache)], check=True, capture_output=True, text=True
    )
    everything, no_intermediate, no_drafter = map(int, done.stdout.split())
    assert everything - (1 << 20) > no_intermediate > no_drafter + (1 << 19)


def test_the_process_s_own_size_counts_as_well(load: Callable[..., TextModel], probe_cache: Path) -> None:
    """However much the computer has left: who holds more than the budget gives up what a budget would have left out."""
    resident, now = [0], [0.0]

    def clock() -> float:
        now[0] += 100.0
        return now[0]

    budget_bytes = 1 << 30
    system = system_watch(budget_bytes, resident=lambda: resident[0])

    def look() -> PressureReading:
        system_now = system.look()
        return replace(system_now, available_bytes=PLENTY, stalled_percent=0.0)

    watch = PressureWatch(look, low_bytes=100, interval_s=0.0, clock=clock)
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=probe_cache, watch=watch) as model:
        for _ in range(3):
            model.check_memory()
        assert model.degradations == ()
        resident[0] = budget_bytes + 1
        for _ in range(3):
            model.check_memory()
        released = ("the intermediate model is dropped", "the drafter is dropped")
        assert model.degradations == released
        resident[0] = budget_bytes - 1
        for _ in range(9):
            model.check_memory()
        assert model.degradations == released
        resident[0] = 0
        for _ in range(9):
            model.check_memory()
        assert model.degradations == ()


@pytest.mark.parametrize("named", [True, False])
def test_only_a_budget_that_was_named_limits_the_program_around_the_model(
    named: bool, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that allocates for itself after loading keeps its drafters, as long as the computer has memory left."""
    now, held = [0.0], [0]

    def watch_of(budget_bytes: int | None) -> PressureWatch:
        system = system_watch(budget_bytes, resident=lambda: held[0])

        def look() -> PressureReading:
            return replace(system.look(), available_bytes=PLENTY, stalled_percent=0.0)

        def clock() -> float:
            now[0] += 100.0
            return now[0]

        return PressureWatch(look, low_bytes=100, interval_s=0.0, clock=clock)

    monkeypatch.setattr("edge_spec.loading.system_watch", watch_of)
    memory = usage().resident_bytes + (400 << 20) if named else None
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=probe_cache, memory=memory) as model:
        held[0] = 1 << 50
        for _ in range(3):
            model.check_memory()
        assert bool(model.degradations) == named


def test_a_mode_with_an_intermediate_model_alone_steps_down_too(load: Callable[..., TextModel]) -> None:
    def build(models: DraftModels) -> Drafter:
        return ModelDrafter(models.intermediate(trees=False))

    mode = Mode(name="intermediate", build=build, limit=3, needs=("intermediate",))
    with load(lambda: SCARCE if not model.degradations else 150, speculation=mode) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True)
        reply.read()
        assert (reply.finish_reason, len(model.degradations)) == ("length", 1)
        assert not any(line.owner == "intermediate" for line in model.ledger)


def test_without_drafters_words_may_differ_where_drafts_make_a_difference(load: Callable[..., TextModel]) -> None:
    mode = replace(MODES["sequence"], lossless=False)
    with load(lambda: SCARCE if not model.degradations else 150, speculation=mode) as model:
        for _ in range(4):
            model.check_memory()
        # With nobody to tell.
        assert model.degradations == ()
        reply = model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True)
        reply.read()
        (notice,) = reply.notices
        assert "is dropped" in notice
        assert "words may differ" in notice
