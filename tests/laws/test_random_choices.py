"""The law of random choices on real engines: whatever a chooser chooses in a round, the text is that of plain decoding.

Drafter, length, siblings and whether to draft at all are drawn in every round, in a hierarchy twice: for the
target and for the intermediate model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from modes_agree import questions
from random_choices import RandomChoices

import edge_spec
from edge_spec import Mode, TextModel
from edge_spec.chat import ChatSession
from edge_spec.engines.onnx.kernels import available
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.modes import DraftModels

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "ages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "ages"],
}
N_CTX = 144
TALK = ("Tell me a story about a dog, please.", "And then?", "Who was with the dog?", "Tell me a story about a cat.")

Models = Callable[[str], TextModel]


def anything(models: DraftModels) -> Drafter:
    """Every drafter, chosen among at random."""
    path = ModelDrafter(models.draft(trees=True), width=3, beam=1)
    leaf = RandomChoices([path, NgramDrafter()], 1)
    hierarchy = HierarchyDrafter(leaf, models.intermediate(trees=True), leaf_limit=5, width=3)
    return RandomChoices([hierarchy, LeafDrafter(hierarchy, path), NgramDrafter()], 2)


ANYTHING = Mode(
    name="anything",
    build=anything,
    limit=9,
    needs=("draft", "intermediate"),
    target_trees=True,
    draft_trees=True,
)


@pytest.fixture(scope="module", params=["llama", "onnx"])
def models(request: pytest.FixtureRequest, probe_cache: Path) -> Iterator[Models]:
    """The demo family with drafters chosen at random, and without any; loaded once per engine."""
    if request.param == "onnx" and available() is not None:
        pytest.skip("the kernels were not built")
    opened: dict[str, TextModel] = {}

    def of(kind: str) -> TextModel:
        if kind not in opened:
            mode = ANYTHING if kind == "random" else "off"
            values: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "cache_dir": probe_cache}
            opened[kind] = edge_spec.load("demo", speculation=mode, engine=request.param, **values)
        return opened[kind]

    yield of
    for model in opened.values():
        model.close()


@pytest.mark.long
@pytest.mark.parametrize("asked", [{}, {"json_schema": SCHEMA}], ids=["free", "with a schema"])
def test_a_reply_is_the_same(models: Models, prompts: list[str], asked: dict[str, Any]) -> None:
    n_drafted = 0
    # The last prompt leaves room for few tokens: these replies fill the context.
    for question in questions([prompts[0], prompts[2], prompts[3] * 7], (0, 0.8), **asked):
        plain, random = (models(kind).generate(**question) for kind in ("off", "random"))
        assert random.read() == plain.read()
        assert (random.token_ids, random.finish_reason) == (plain.token_ids, plain.finish_reason)
        n_drafted += random.statistics.drafted
    assert n_drafted > 25


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_conversation_that_overflows_and_is_resumed_is_the_same(
    models: Models, temperature: float, tmp_path: Path
) -> None:
    """The oldest messages leave the context, and the conversation is saved and loaded in between."""
    told: dict[str, list[Any]] = {}
    for kind in ("off", "random"):
        model = models(kind)
        session = model.chat("You are a storyteller.", seed=5, temperature=temperature)
        for turn, question in enumerate(TALK):
            if turn == 2:
                session.save(tmp_path / kind)
                session.close()
                # Other texts pass through the models meanwhile.
                model.generate("A", max_tokens=9, seed=1).read()
                session = ChatSession.load(model, tmp_path / kind)
            asked = {"json_schema": SCHEMA, "max_tokens": 40} if turn == 1 else {"max_tokens": 60}
            session.send(question, **asked).read()
        assert session.n_seen < session.n_tokens
        told[kind] = [session.messages, session.n_tokens, session.n_seen]
        session.close()
    assert told["random"] == told["off"]
