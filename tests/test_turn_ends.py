"""Laws of a turn's end: caches hold the text and no guess, and the memory of the next turn is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edge_spec
from edge_spec import TextModel
from edge_spec.backends.llama import LlamaModel
from edge_spec.backends.llama.library import library
from edge_spec.drafters.hierarchy import HierarchyDrafter
from edge_spec.drafters.model import ModelDrafter


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
    speculator = reply._speculator
    for model in (speculator.model, *case.models):
        assert not model.pending
        assert model.cells == tuple(speculator.text[: model.n_past])


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
    speculator = model._speculator
    yield speculator.model, speculator.text
    drafter: Any = speculator.drafter
    while isinstance(drafter, HierarchyDrafter):
        yield drafter._inner.model, drafter._inner.text
        drafter = drafter._inner.drafter
    if isinstance(drafter, ModelDrafter):
        assert not drafter._pending
        yield drafter._model, drafter._text


def check_caches(model: TextModel, text: list[int]) -> None:
    for each, follows in models_of(model):
        assert follows == text
        assert each.n_past <= len(text)
        assert not each._pending
        if isinstance(each, LlamaModel):
            c, memory = library().c, each._memory
            assert c.llama_memory_seq_pos_max(memory, 0) == each.n_past - 1
            assert all(c.llama_memory_seq_pos_max(memory, n) == -1 for n in range(1, each._ids.shape[1]))


@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("mode", ["sequence", "tree", "hierarchy"])
def test_after_a_turn_the_caches_hold_the_talk_and_nothing_else(
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


def test_a_long_talk_stays_inside_what_was_planned(load: Callable[..., TextModel]) -> None:
    model = load(n_ctx=256, speculation="sequence")
    held = model.ledger.held_bytes
    session = model.chat("You are a friend.", seed=3, max_tokens=70, ignore_eos=True)
    for _ in range(6):
        session.send("Tell me a story about a dog and a cat.").read()
        assert model._speculator.model.n_past <= 256
        assert model.ledger.held_bytes == held
    assert session.n_tokens > 256 >= session.n_seen
