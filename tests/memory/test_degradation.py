"""Laws of models under pressure: lossless steps leave the text as it is, and memory really comes back."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec import TextModel
from edge_spec.engines.base import ModelSettings, OpenedModel
from edge_spec.engines.llama.engine import LlamaOpener
from edge_spec.engines.onnx.engine import OnnxOpener
from edge_spec.errors import BackendError
from edge_spec.loading import plan
from edge_spec.memory.pressure import PressureReading, PressureWatch, system_watch
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.modes import MODES, DraftModels, Mode

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
        def look() -> PressureReading:
            return PressureReading(available_bytes=self._decide())

        return PressureWatch(look, low_bytes=100, interval_s=0.0, clock=self.clock)


@pytest.fixture
def load(probe_cache: Path) -> Callable[..., TextModel]:
    def of(decide: Callable[[], int], **values: Any) -> TextModel:
        asked = {"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, "speculation": "hierarchy", **values}
        return edge_spec.load("demo", watch=Squeezer(decide).watch(), **asked)

    return of


Change = Callable[[ModelSettings, Callable[[], OpenedModel]], OpenedModel]


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Lets a test change what engines open from now on, or refuse it: told the settings, and what would open it."""

    def install(change: Change) -> None:
        for kind in (LlamaOpener, OnnxOpener):

            def opened(self: Any, file: Any, settings: Any, *, before: Any = kind.open, **more: Any) -> OpenedModel:
                return change(settings, lambda: before(self, file, settings, **more))

            monkeypatch.setattr(kind, "open", opened)

    return install


def refused(settings: ModelSettings) -> OpenedModel:
    raise BackendError("no memory")


def talk(model: TextModel, **values: Any) -> list[Any]:
    seen: list[Any] = []
    session = model.chat("You are a friend.", seed=3, max_tokens=40, on_notice=seen.append, **values)
    for text in ASKED:
        session.send(text).read()
    return [*seen, *session.messages]


@pytest.mark.parametrize("n_runs", [6, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_squeezed_talk_is_word_for_word_the_unsqueezed_one(
    load: Callable[..., TextModel], engine: str, n_runs: int
) -> None:
    with load(lambda: PLENTY, engine=engine) as model:
        calm = talk(model)
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
            assert talk(model) == calm, run
            model.ledger.check_integrity()
    assert {len(steps) for steps in degradations} == {0, 1, 2}


@pytest.mark.parametrize("mode", ["sequence", "tree", "ngram", "off", "auto"])
def test_every_mode_can_be_squeezed(load: Callable[..., TextModel], mode: str) -> None:
    with load(lambda: PLENTY, speculation=mode) as model:
        calm = talk(model)
    n_lossless = {"sequence": 1, "tree": 1, "auto": 1, "ngram": 0, "off": 0}[mode]
    with load(lambda: SCARCE if len(model.degradations) < n_lossless else 150, speculation=mode) as model:
        assert talk(model) == calm
        assert len(model.degradations) == n_lossless


@pytest.mark.parametrize(("engine", "kinds"), [("llama", ["q8_0/f16", "q8_0/q8_0"]), ("onnx", ["f32/f32", "f16/f16"])])
def test_every_step_gives_memory_back(load: Callable[..., TextModel], engine: str, kinds: list[str]) -> None:
    wanted = 0
    with load(lambda: SCARCE if len(model.degradations) < wanted else 150, n_ctx=None, engine=engine) as model:
        held, caches = [], []
        for wanted in range(1 + 2 + 1 + 2):
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
        given_up = ("the intermediate model is dropped", "the drafter is dropped")
        assert model.degradations == given_up
        resident[0] = budget_bytes - 1
        for _ in range(9):
            model.check_memory()
        assert model.degradations == given_up
        resident[0] = 0
        for _ in range(9):
            model.check_memory()
        assert model.degradations == ()


def test_a_smaller_context_is_announced_and_goes_on(load: Callable[..., TextModel]) -> None:
    asked = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16"}
    with load(lambda: SCARCE if len(model.degradations) < 4 else 150, **asked) as model:
        seen = talk(model)
        notices = [sentence for sentence in seen if isinstance(sentence, str)]
        assert any("context is dropped" in sentence for sentence in notices)
        # What the user fixed stays.
        assert (model.n_ctx, dict(model.profile.facts)["kv"]) == (256, "q8_0/f16")
        assert len([message for message in seen if not isinstance(message, str)]) == 1 + 2 * len(ASKED)


@pytest.mark.parametrize(("engine", "kinds"), [("llama", "q8_0/q8_0"), ("onnx", "f16/f16")])
def test_a_smaller_cache_is_announced_with_its_profile_and_forgets_nothing(
    load: Callable[..., TextModel], engine: str, kinds: str
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine=engine) as model:
        before = model.profile.name
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        reply = session.send(ASKED[0])
        reply.read()
        assert dict(model.profile.facts)["kv"] == kinds
        assert before != model.profile.name
        (notice,) = reply.notices
        assert "words may differ" in notice
        assert model.profile.name in notice
        # The context is as long as it was, and the models have all of the text in it.
        assert model.n_ctx == 512
        target = model.followed["target"]
        assert target.tokens == [*reply.prompt, *reply.token_ids]
        assert target.model.n_past >= len(target.tokens) - 1 - target.model.capabilities.max_rows
        session.send(ASKED[1]).read()


def test_a_cache_made_smaller_answers_as_one_that_was_small_from_the_start(load: Callable[..., TextModel]) -> None:
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine="llama") as model:
        model.generate(ASKED[0], **asked).read()
        profile, late = model.profile, model.generate(ASKED[1], **asked).read()
    with load(lambda: PLENTY, engine="llama", kv_k="q8_0", kv_v="q8_0") as model:
        assert model.profile == profile
        assert model.generate(ASKED[1], **asked).read() == late


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_what_changes_words_stays_given_up_and_the_rest_comes_back(load: Callable[..., TextModel], engine: str) -> None:
    squeezed = True

    def decide() -> int:
        return PLENTY if not squeezed else SCARCE if len(model.degradations) < 3 else 150

    with load(decide, engine=engine) as model:
        drafter = model.drafter_name
        model.generate(ASKED[0], seed=1, max_tokens=30, ignore_eos=True).read()
        profile, degradations, squeezed = model.profile, model.degradations, False
        assert model.drafter_name != drafter
        model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True).read()
        assert (model.profile, model.degradations) == (profile, degradations[2:])
        assert model.drafter_name == drafter
        assert {line.owner for line in model.ledger} >= {"target", "intermediate", "draft"}
        model.ledger.check_integrity()


@pytest.mark.parametrize(("wanted", "n_steps", "n_ctx"), [({"n_ctx": 512}, 1, 512), ({"min_n_ctx": 256}, 3, 256)])
def test_the_ledger_of_a_reopened_context_is_that_of_a_plan(
    load: Callable[..., TextModel], wanted: dict[str, Any], n_steps: int, n_ctx: int
) -> None:
    given: dict[str, Any] = {"n_ctx": None, "engine": "llama", "speculation": "off", **wanted}
    with load(lambda: SCARCE if len(model.degradations) < n_steps else 150, **given) as model:
        model.generate(ASKED[0], seed=1, max_tokens=20, ignore_eos=True).read()
        assert model.n_ctx == n_ctx
        changes: dict[str, Any] = {"kv_k": "q8_0", "kv_v": "q8_0", "n_ctx": n_ctx}
        line = {line.name: line for line in model.ledger if line.owner == "target"}
        asked: dict[str, Any] = {"n_threads": 1, "engine": "llama", "speculation": "off", **changes}
        planned = plan("demo", memory="1GiB", **asked).chosen.parts["target"]
        assert {name: each.predicted_bytes for name, each in line.items()} == planned.lines()
        cache = line["KV cache"]
        assert cache.measured_bytes == pytest.approx(cache.predicted_bytes, abs=20 << 10)
        model.ledger.check_integrity()


def test_with_nothing_left_to_give_up_a_reply_stops_cleanly(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert reply.finish_reason == "memory"
        assert any("stops here" in notice for notice in reply.notices)
        session = model.chat(seed=1)
        session.send("Hello!").read()
        assert session.messages[-1].finish_reason == "memory"


def test_a_context_that_cannot_be_reopened_leaves_the_old_one(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 2 else 150) as model:
        calm = talk(model)
    tried: list[ModelSettings] = []
    with load(lambda: 150 if tried else SCARCE, n_ctx=None) as model:

        def refuse(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
            if settings.exact and (settings.n_ctx, settings.kv_k) != (1024, dict(profile.facts)["kv"].split("/")[0]):
                tried.append(settings)
                return refused(settings)
            return open_it()

        profile = model.profile
        opening(refuse)
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        session.send(ASKED[0]).read()
        if session.messages[-1].finish_reason == "memory":
            session.continue_answer().read()
        assert (model.n_ctx, model.profile) == (1024, profile)
        # Everything that would take less, each once.
        assert {settings.n_ctx for settings in tried} == {1024, 512, 256}
        assert len(tried) == len(set(tried))
        assert session.messages[-1].content == next(
            message.content for message in calm if not isinstance(message, str) and message.role == "assistant"
        )


def test_what_the_user_fixed_stays_until_the_reply_stops(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE, engine="llama", n_ctx=512, kv_k="q8_0", kv_v="f16") as model:
        profile = model.profile
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert reply.finish_reason == "memory"
        assert (model.n_ctx, model.profile) == (512, profile)


def changed(change: Callable[[Any], Any]) -> Change:
    """Lets every target that is opened be changed by ``change``, or what that raises."""

    def opened(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
        found = open_it()
        if settings.exact:
            change(found.model)
        return found

    return opened


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_step_that_is_cancelled_while_the_text_is_read_again_is_taken_and_told(
    load: Callable[..., TextModel], opening: Callable[[Change], None], engine: str
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine=engine) as model:
        before = model.profile.name
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        reply = session.send(ASKED[0])

        def cancelled_while_reading(target: Any) -> None:
            prefill = target.prefill

            def read(tokens: Any) -> None:
                reply.cancel()
                prefill(tokens)

            target.prefill = read

        opening(changed(cancelled_while_reading))
        reply.read()
        assert reply.finish_reason == "cancelled"
        assert len(model.degradations) == 3
        assert model.profile.name != before
        assert any(model.profile.name in notice for notice in reply.notices)
        del model.followed["target"].model.prefill  # type: ignore[method-assign]
        # It goes on, and has been told once.
        rest = session.continue_answer()
        rest.read()
        assert rest.finish_reason in ("eos", "length")
        assert rest.notices == []


def test_a_step_is_told_even_if_there_is_no_memory_to_read_the_text_again(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine="llama") as model:

        def out_of_memory(target: Any) -> None:
            def read(tokens: Any) -> None:
                raise MemoryError

            target.prefill = read

        opening(changed(out_of_memory))
        reply = model.generate(ASKED[0], seed=1, max_tokens=40)
        with pytest.raises(MemoryError):
            reply.read()
        assert any(model.profile.name in notice for notice in reply.notices)
        assert len(model.degradations) == 3


def test_everybody_is_told_once_of_a_profile_that_changed_meanwhile(load: Callable[..., TextModel]) -> None:
    squeezed = False
    with load(lambda: SCARCE if squeezed and len(model.degradations) < 3 else 150, engine="llama") as model:
        one, other = (model.chat("You are a friend.", seed=3, max_tokens=20) for _ in range(2))
        assert other.send(ASKED[0]).read()
        squeezed = True
        one.send(ASKED[0]).read()

        def told(reply: Any) -> int:
            reply.read()
            return sum(model.profile.name in notice for notice in reply.notices)

        assert [told(session.send(ASKED[1])) for session in (other, other, one)] == [1, 0, 0]
        new = model.chat(seed=3, max_tokens=5)
        assert [told(new.send(ASKED[0])), told(new.send(ASKED[1]))] == [1, 0]
        assert told(model.generate(ASKED[0], max_tokens=5)) == 1


@pytest.mark.parametrize("missing", ["intermediate", "draft"])
def test_a_step_up_that_fails_leaves_what_worked_and_nothing_else(
    load: Callable[..., TextModel], opening: Callable[[Change], None], missing: str
) -> None:
    wanted, squeezed = {"intermediate": 1, "draft": 2}[missing], True
    with load(lambda: (SCARCE if len(model.degradations) < wanted else 150) if squeezed else PLENTY) as model:
        for _ in range(4):
            model.check_memory()
        degradations, drafter = model.degradations, model.drafter_name
        held = {(line.owner, line.name) for line in model.ledger}
        n_opened = 0

        def fails(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
            nonlocal n_opened
            n_opened += 1
            # The drafter comes first, then the intermediate model.
            if missing == "draft" or n_opened % 3 == 2:
                raise OSError("no memory")
            return open_it()

        opening(fails)
        squeezed = False
        for _ in range(4):
            model.check_memory()
        assert n_opened > 0
        assert (model.degradations, model.drafter_name) == (degradations, drafter)
        assert {(line.owner, line.name) for line in model.ledger} == held
        model.ledger.check_integrity()


def test_a_mode_with_an_intermediate_model_alone_steps_down_too(load: Callable[..., TextModel]) -> None:
    def build(models: DraftModels) -> Drafter:
        return ModelDrafter(models.intermediate(trees=False))

    mode = Mode(name="intermediate", build=build, limit=3, needs=("intermediate",))
    with load(lambda: SCARCE if not model.degradations else 150, speculation=mode) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True)
        reply.read()
        assert (reply.finish_reason, len(model.degradations)) == ("length", 1)
        assert not any(line.owner == "intermediate" for line in model.ledger)


@pytest.mark.parametrize("opens", [False, True])
def test_half_a_context_forgets_turns_only_once_it_is_there(
    load: Callable[..., TextModel], opening: Callable[[Change], None], opens: bool
) -> None:
    squeezed, refused_once = False, False
    asked = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16", "engine": "llama", "speculation": "off"}

    def decide() -> int:
        return SCARCE if squeezed and not refused_once and not model.degradations else 150

    with load(decide, **asked) as model:
        session = model.chat("You are a friend.", seed=3, max_tokens=180, ignore_eos=True)
        for text in ASKED[:3]:
            session.send(text).read()
        assert 512 < session.n_seen == session.n_tokens

        def refuse(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
            nonlocal refused_once
            if settings.n_ctx != 1024:
                refused_once = True
                return refused(settings)
            return open_it()

        if not opens:
            opening(refuse)
        squeezed = True
        reply = session.send(ASKED[3])
        reply.read()
        forgot = any("no longer sees" in notice for notice in reply.notices)
        halved = any("half of the context is dropped" in notice for notice in reply.notices)
        assert (forgot, halved, session.n_seen < session.n_tokens) == (opens, opens, opens)
        assert model.n_ctx == (512 if opens else 1024)
        session.continue_answer().read() if reply.finish_reason == "memory" else None
        assert session.messages[-1].content


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_target_that_cannot_be_opened_at_all_is_opened_for_the_next_reply(
    load: Callable[..., TextModel], opening: Callable[[Change], None], engine: str
) -> None:
    squeezed = True
    with load(lambda: SCARCE if squeezed else 150, engine=engine) as model:
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        profile, no_memory = model.profile, True
        opening(lambda settings, open_it: refused(settings) if settings.exact and no_memory else open_it())
        reply = session.send(ASKED[0])
        begun = reply.read()
        assert reply.finish_reason == "memory"
        assert any("stops here" in notice for notice in reply.notices)
        assert session.messages[-1].content == begun
        assert not any(line.owner == "target" for line in model.ledger)
        again = session.continue_answer()
        assert again.read() == ""
        assert again.finish_reason == "memory"
        lone = model.generate(ASKED[0], seed=1, max_tokens=5)
        lone.read()
        assert lone.finish_reason == "memory"
        squeezed = no_memory = False
        rest = session.continue_answer()
        rest.read()
        assert rest.finish_reason in ("eos", "length")
        assert session.messages[-1].content.startswith(begun)
        assert any(line.owner == "target" for line in model.ledger)
        assert model.profile == profile
        model.ledger.check_integrity()


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


@pytest.mark.parametrize("room", [True, False])
def test_copies_of_a_cache_are_lent_or_the_text_is_read_again(
    load: Callable[..., TextModel], monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    lent: list[int] = []
    asked = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16", "engine": "llama", "speculation": "off"}
    with load(lambda: SCARCE if not model.degradations else 150, **asked) as model:
        lend = model.ledger.lend

        def counted(owner: str, name: str, n_bytes: int) -> Any:
            lent.append(n_bytes)
            return lend(owner, name, n_bytes if room else 1 << 60)

        model.ledger.budget_bytes = model.ledger.held_bytes + model.ledger.reserve_bytes + (64 << 20)
        monkeypatch.setattr(model.ledger, "lend", counted)
        reply = model.generate(ASKED[0], seed=1, max_tokens=40, ignore_eos=True)
        reply.read()
        assert (reply.finish_reason, model.n_ctx) == ("length", 512)
        assert len(lent) == (2 if room else 1)
        assert all(lent)
        model.ledger.check_integrity()


def test_where_drafts_make_a_difference_from_now_on_that_is_told_and_so_is_their_return(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    squeezed = True

    def decide() -> int:
        return PLENTY if not squeezed else SCARCE if len(model.degradations) < 3 else 150

    with load(decide, engine="llama") as model:

        def rounds(target: Any) -> None:
            target.capabilities = replace(target.capabilities, widths=())

        opening(changed(rounds))
        reply = model.generate(ASKED[0], seed=1, max_tokens=20, ignore_eos=True)
        reply.read()
        (notice,) = reply.notices
        assert "identity rounding" in notice
        squeezed, degradations = False, model.degradations
        for _ in range(6):
            model.check_memory()
        assert model.degradations == degradations
        reply = model.generate(ASKED[0], seed=1, max_tokens=20, ignore_eos=True)
        reply.read()
        assert model.degradations == degradations[2:]
        assert sum("no longer: " in notice and "words may differ" in notice for notice in reply.notices) == 1


@pytest.mark.parametrize(("asked", "left"), [({"n_ctx": 512}, 512), ({"min_n_ctx": 300}, 512), ({}, 256)])
def test_a_context_gives_way_down_to_what_was_asked_for_at_least(
    load: Callable[..., TextModel], asked: dict[str, int], left: int
) -> None:
    wanted: dict[str, Any] = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16", "speculation": "off", **asked}
    with load(lambda: SCARCE, **wanted) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert (reply.finish_reason, model.n_ctx) == ("memory", left)
