"""Laws of degradation that changes the profile: smaller caches and contexts are announced, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scarce_memory import ASKED, PLENTY, SCARCE, Change, converse, refused

from edge_spec import TextModel
from edge_spec.engines.base import ModelSettings, OpenedModel
from edge_spec.loading import plan

pytestmark = pytest.mark.long


def test_a_smaller_context_is_announced_and_the_conversation_continues(load: Callable[..., TextModel]) -> None:
    asked = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16"}
    with load(lambda: SCARCE if len(model.degradations) < 4 else 150, **asked) as model:
        seen = converse(model)
        notices = [sentence for sentence in seen if isinstance(sentence, str)]
        assert any("context is dropped" in sentence for sentence in notices)
        # What the user fixed stays.
        assert (model.n_ctx, dict(model.profile.facts)["kv"]) == (256, "q8_0/f16")
        assert len([message for message in seen if not isinstance(message, str)]) == 1 + 2 * len(ASKED)


@pytest.mark.parametrize(("engine", "kinds"), [("llama", "q8_0/q8_0"), ("onnx", "f16/f16")])
def test_a_smaller_cache_is_announced_with_its_profile_and_forgets_nothing(
    load: Callable[..., TextModel], larger_caches: Callable[[str], dict[str, Any]], engine: str, kinds: str
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, **larger_caches(engine)) as model:
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
        assert target.text.tokens == [*reply.prompt, *reply.token_ids]
        assert target.model.n_past >= len(target.text) - 1 - target.model.capabilities.max_rows
        session.send(ASKED[1]).read()


def test_a_cache_made_smaller_answers_as_one_that_was_small_from_the_start(load: Callable[..., TextModel]) -> None:
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine="llama") as model:
        model.generate(ASKED[0], **asked).read()
        profile, late = model.profile, model.generate(ASKED[1], **asked).read()
    with load(lambda: PLENTY, engine="llama", kv_k="q8_0", kv_v="q8_0") as model:
        assert model.profile == profile
        assert model.generate(ASKED[1], **asked).read() == late


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


def test_what_the_user_fixed_stays_until_the_reply_stops(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE, engine="llama", n_ctx=512, kv_k="q8_0", kv_v="f16") as model:
        profile = model.profile
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert reply.finish_reason == "memory"
        assert (model.n_ctx, model.profile) == (512, profile)


def test_everybody_is_told_once_of_a_profile_that_changed_meanwhile(load: Callable[..., TextModel]) -> None:
    scarce = False
    with load(lambda: SCARCE if scarce and len(model.degradations) < 3 else 150, engine="llama") as model:
        one, other = (model.chat("You are a friend.", seed=3, max_tokens=20) for _ in range(2))
        assert other.send(ASKED[0]).read()
        scarce = True
        one.send(ASKED[0]).read()

        def told(reply: Any) -> int:
            reply.read()
            return sum(model.profile.name in notice for notice in reply.notices)

        assert [told(session.send(ASKED[1])) for session in (other, other, one)] == [1, 0, 0]
        new = model.chat(seed=3, max_tokens=5)
        assert [told(new.send(ASKED[0])), told(new.send(ASKED[1]))] == [1, 0]
        assert told(model.generate(ASKED[0], max_tokens=5)) == 1


@pytest.mark.parametrize("opens", [False, True])
def test_half_a_context_forgets_turns_only_once_it_is_there(
    load: Callable[..., TextModel], opening: Callable[[Change], None], opens: bool
) -> None:
    scarce, refused_once = False, False
    asked = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16", "engine": "llama", "speculation": "off"}

    def decide() -> int:
        return SCARCE if scarce and not refused_once and not model.degradations else 150

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
        scarce = True
        reply = session.send(ASKED[3])
        reply.read()
        forgot = any("no longer sees" in notice for notice in reply.notices)
        halved = any("half of the context is dropped" in notice for notice in reply.notices)
        assert (forgot, halved, session.n_seen < session.n_tokens) == (opens, opens, opens)
        assert model.n_ctx == (512 if opens else 1024)
        session.continue_answer().read() if reply.finish_reason == "memory" else None
        assert session.messages[-1].content


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


@pytest.mark.parametrize(("asked", "left"), [({"n_ctx": 512}, 512), ({"min_n_ctx": 300}, 512), ({}, 256)])
def test_a_context_gives_way_down_to_what_was_asked_for_at_least(
    load: Callable[..., TextModel], asked: dict[str, int], left: int
) -> None:
    wanted: dict[str, Any] = {"n_ctx": None, "kv_k": "q8_0", "kv_v": "f16", "speculation": "off", **asked}
    with load(lambda: SCARCE, **wanted) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert (reply.finish_reason, model.n_ctx) == ("memory", left)
