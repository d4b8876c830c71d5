"""Laws of a turn's end: caches hold the text and no guess, and the memory of the next turn is there already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edge_spec
from edge_spec import Mode, TextModel, Tree
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.settings import context_parameters
from edge_spec.errors import Closed
from edge_spec.llama_cpp.library import library
from edge_spec.speculation.drafters import Drafter


@pytest.mark.long
@given(st.data())
@settings(max_examples=150)
def test_cells_of_every_model_are_committed_text_when_a_reply_has_ended(
    cases: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    case = data.draw(cases)
    reply = case.generation()
    n_pieces = data.draw(st.integers(0, 20))
    for n, _ in enumerate(reply):
        if n == n_pieces:
            break
    reply.close()
    case.last.drafter.save()
    for model in (case.last.model, *case.models):
        assert not model.pending
        assert model.cells == tuple(case.last.text[: model.n_past])


@pytest.fixture
def load(probe_cache: Path) -> Iterator[Callable[..., TextModel]]:
    opened: list[TextModel] = []

    def of(**values: Any) -> TextModel:
        opened.append(edge_spec.load("demo", **{"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, **values}))
        return opened[-1]

    yield of
    for model in opened:
        model.close()


def models_of(model: TextModel) -> Iterator[tuple[Any, list[int]]]:
    """All models, with the text that each of them follows."""
    # A drafter catches up with the text when it is asked for something.
    model._scheduler.target.drafter.save()
    for followed in model.followed.values():
        yield followed.model, followed.text.tokens


def check_caches(model: TextModel, text: list[int]) -> None:
    for each, follows in models_of(model):
        assert follows == text
        assert each.n_past <= len(text)
        assert not getattr(each, "pending" if hasattr(each, "pending") else "_pending")
        if isinstance(each, LlamaPath):
            c, memory = library().c, each.pool.context.memory
            n_sequences = context_parameters(each.pool.settings).n_seq_max
            ends = [c.llama_memory_seq_pos_max(memory, n) for n in range(n_sequences)]
            assert sorted(ends) == [*[-1] * (n_sequences - 1), each.n_past - 1]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("mode", ["sequence", "tree", "hierarchy"])
def test_after_a_turn_the_caches_hold_the_conversation_and_nothing_else(
    load: Callable[..., TextModel], mode: str, engine: str
) -> None:
    model = load(speculation=mode, engine=engine)
    lines = [(line.owner, line.name, line.predicted_bytes) for line in model.ledger]
    session = model.chat("You are a friend.", seed=3, max_tokens=24)
    for question, ends in (("Hello, who are you?", True), ("Tell me a story.", False), ("And then?", True)):
        reply = session.send(question)
        if ends:
            reply.read()
        else:
            next(reply)
            reply.close()
        check_caches(model, [*reply.prompt, *reply.token_ids])
        # Nothing is asked for that was not there for the first turn, and the next answer has its room.
        assert [(line.owner, line.name, line.predicted_bytes) for line in model.ledger] == lines
        assert session.n_seen + model.n_ctx // 8 <= model.n_ctx
        model.ledger.check_integrity()


def test_a_long_conversation_stays_inside_what_was_planned(load: Callable[..., TextModel]) -> None:
    model = load(n_ctx=256, speculation="sequence")
    held = model.ledger.held_bytes
    session = model.chat("You are a friend.", seed=3, max_tokens=70, ignore_eos=True)
    for _ in range(6):
        session.send("Tell me a story about a dog and a cat.").read()
        assert model.followed["target"].model.n_past <= 256
        assert model.ledger.held_bytes == held
    assert session.n_tokens > 256 >= session.n_seen


@pytest.mark.long
@pytest.mark.parametrize("closes_again", [False, True])
def test_a_model_closed_by_a_notice_is_closed_at_the_end_of_the_turn(
    load: Callable[..., TextModel], closes_again: bool
) -> None:
    model = load(n_ctx=256, speculation="sequence")
    seen: list[str] = []

    def told(sentence: str) -> None:
        seen.append(sentence)
        model.close()
        # The round that told still has the models.
        assert model.worker.is_closed
        assert model.n_ctx == 256

    session = model.chat("You are a friend.", seed=3, max_tokens=70, ignore_eos=True, on_notice=told)
    reply = None
    ended = threading.Event()

    def converse() -> None:
        nonlocal reply
        while not seen:
            reply = session.send("Tell me a story about a dog and a cat.")
            reply.read()
        ended.set()

    threading.Thread(target=converse, daemon=True).start()
    assert ended.wait(120)
    assert reply is not None
    assert reply.finish_reason == "cancelled"
    if closes_again:
        model.close()
    with pytest.raises(Closed):
        model.tokenize("Hello")
    with pytest.raises(Closed):
        model.followed["target"].model.rollback(0)


def no_way_back() -> None:
    raise RuntimeError("no way back")


class Again(Drafter):
    """Guesses that the last token comes again."""

    name = "again"

    def draft(self, limit: int) -> Tree:
        return Tree.sequence(self.text.tokens[-1:] * limit)


@pytest.mark.parametrize("closes", [False, True])
def test_a_reply_whose_end_fails_gives_its_turn_back(load: Callable[..., TextModel], closes: bool) -> None:
    model = load(speculation=Mode(name="again", build=lambda opened: Again(), limit=2), n_ctx=256)
    model._scheduler.target.latest.end_reply = no_way_back  # type: ignore[method-assign]
    session = model.chat("You are a friend.", seed=1, max_tokens=8)
    reply = session.send("Hi")
    with pytest.raises(RuntimeError, match="no way back"):
        if closes:
            next(reply)
            reply.close()
        else:
            reply.read()
    assert reply.finish_reason in ("length", "eos", "cancelled", "error")
    assert session.messages[-1].content == reply.content != ""
    assert "".join(reply) in reply.text
    free = threading.Event()

    def wait() -> None:
        with model.worker.pause():
            free.set()

    threading.Thread(target=wait, daemon=True).start()
    assert free.wait(60)
