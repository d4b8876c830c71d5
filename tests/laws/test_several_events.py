"""Laws of the events of several replies: each tells what it tells alone, and says when it has ended."""

from __future__ import annotations

from typing import Any

import pytest
from letters import LetterTokenizer

from edge_spec import TextModel
from edge_spec.generation.events import TokenEvent
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

TABLE = random_table(6, order=2, seed=5)
PROMPTS = [[1, 2], [1, 2, 3, 4, 5] * 4, [3] * 8, [2]]


def text_model(most: int) -> TextModel:
    """A model whose decodes advance ``most`` texts."""
    widths = tuple(range(1, 65)) if most > 1 else ()
    target = TableModel(TABLE, n_ctx=48, max_rows=max(most, 2), widths=widths)
    tokenizer = LetterTokenizer("abcdef", end=5)
    return TextModel(Target(Slot(target, NgramDrafter())), lambda: 3, tokenizer, mode="ngram")


def tokens_of(events: list[TokenEvent]) -> list[tuple[Any, ...]]:
    return [(event.id, event.logprob, event.top) for event in events if event.id is not None]


@pytest.mark.parametrize("most", [1, 2, 3, 16])
@pytest.mark.parametrize("stop", [(), ("ba", "dc")])
def test_each_tells_what_it_tells_alone(most: int, stop: tuple[str, ...]) -> None:
    model = text_model(most)
    settings = model.sampler_settings(seed=3, temperature=1.0)
    replies = model.replies(model.requests(PROMPTS, settings, max_tokens=30, stop=stop, logprobs=2), n=2)
    told: dict[int, list[TokenEvent]] = {index: [] for index in range(len(replies))}
    ended = []
    for index, batch in replies.event_batches():
        assert index not in ended
        told[index] += batch
        if not batch:
            assert replies[index].is_complete
            ended.append(index)
    assert sorted(ended) == list(range(2 * len(PROMPTS)))
    for answer in replies.answers:
        events = told[answer.index]
        assert "".join(event.text for event in events) == answer.text
        assert [event.id for event in events if event.id is not None] == answer.token_ids
        alone = model.reply(PROMPTS[answer.index // 2], answer.settings, max_tokens=30, stop=stop, logprobs=2)
        assert tokens_of(events) == tokens_of([*alone.events()])
        assert answer.text == alone.text
