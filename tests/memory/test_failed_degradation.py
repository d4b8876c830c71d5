"""Laws of degradation that fails half way: replies stop cleanly, and what was done is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scarce_memory import ASKED, SCARCE, Change, changed, converse, refused

from edge_spec import TextModel
from edge_spec.engines.base import ModelSettings, OpenedModel


@pytest.mark.long
def test_with_nothing_left_to_release_a_reply_stops_cleanly(load: Callable[..., TextModel]) -> None:
    with load(lambda: SCARCE) as model:
        reply = model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True)
        reply.read()
        assert reply.finish_reason == "memory"
        assert any("stops here" in notice for notice in reply.notices)
        session = model.chat(seed=1)
        session.send("Hello!").read()
        assert session.messages[-1].finish_reason == "memory"


@pytest.mark.long
def test_a_context_that_cannot_be_reopened_leaves_the_old_one(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 2 else 150) as model:
        calm = converse(model)
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
        assert {settings.n_ctx for settings in tried} == {512, 256}
        assert len(tried) == len(set(tried))
        assert session.messages[-1].content == next(
            message.content for message in calm if not isinstance(message, str) and message.role == "assistant"
        )


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_step_that_is_cancelled_while_the_text_is_read_again_is_taken_and_told(
    load: Callable[..., TextModel],
    larger_caches: Callable[[str], dict[str, Any]],
    opening: Callable[[Change], None],
    engine: str,
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, **larger_caches(engine)) as model:
        before = model.profile.name
        session = model.chat("You are a friend.", seed=3, max_tokens=40)
        reply = session.send(ASKED[0])

        def cancelled_while_reading(target: Any) -> None:
            prefill = target.prefill

            def read(texts: Any) -> None:
                reply.cancel()
                prefill(texts)

            target.prefill = read

        opening(changed(cancelled_while_reading))
        reply.read()
        assert reply.finish_reason == "cancelled"
        assert len(model.degradations) == 3
        assert model.profile.name != before
        assert any(model.profile.name in notice for notice in reply.notices)
        del model.followed["target"].model.pool.prefill  # type: ignore[method-assign]
        # It continues, and has been told once.
        rest = session.continue_answer()
        rest.read()
        assert rest.finish_reason in ("eos", "length")
        assert rest.notices == []


@pytest.mark.long
def test_a_step_is_told_even_if_there_is_no_memory_to_read_the_text_again(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    with load(lambda: SCARCE if len(model.degradations) < 3 else 150, engine="llama") as model:

        def out_of_memory(target: Any) -> None:
            def read(texts: Any) -> None:
                raise MemoryError

            target.prefill = read

        opening(changed(out_of_memory))
        reply = model.generate(ASKED[0], seed=1, max_tokens=40)
        with pytest.raises(MemoryError):
            reply.read()
        assert any(model.profile.name in notice for notice in reply.notices)
        assert len(model.degradations) == 3


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_target_that_cannot_be_opened_at_all_is_opened_for_the_next_reply(
    load: Callable[..., TextModel],
    larger_caches: Callable[[str], dict[str, Any]],
    opening: Callable[[Change], None],
    engine: str,
) -> None:
    scarce = True
    with load(lambda: SCARCE if scarce else 150, **larger_caches(engine)) as model:
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
        scarce = no_memory = False
        rest = session.continue_answer()
        rest.read()
        assert rest.finish_reason in ("eos", "length")
        assert session.messages[-1].content.startswith(begun)
        assert any(line.owner == "target" for line in model.ledger)
        assert model.profile == profile
        model.ledger.check_integrity()
