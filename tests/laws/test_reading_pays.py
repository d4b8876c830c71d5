"""Laws of reading: a model that has not followed a text reads it where the rest of the reply pays for that."""

from __future__ import annotations

from typing import Any

import pytest

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree


class Reader(Drafter):
    """A drafter with a model, always right, that has a text to read first.

    Attributes:
        clock: the seconds that it has read.
    """

    name = "reader"

    def __init__(self, n_unread: int, token_s: float) -> None:
        self._n_unread = n_unread
        self._token_s = token_s
        self.clock = 0.0

    @property
    def followed(self) -> Any:
        return {self.name: None}

    def n_unread(self) -> int:
        return self._n_unread

    def read(self, most: int | None = None) -> bool:
        n = min(self._n_unread, most or self._n_unread)
        self._n_unread -= n
        self.clock += n * self._token_s
        return not self._n_unread

    def draft(self, limit: int) -> Tree:
        draft = Tree.sequence([1] * 3, (0.9,) * 3).first(limit)
        self.clock += 0.1 * len(draft)
        return draft


def seconds_of(reader: Reader, n_tokens: int) -> float:
    """Seconds of a reply if the chooser may use a reader that it knows well; a decode takes one."""
    chooser = Chooser([reader], seconds={n: 1.0 for n in range(1, 11)}, clock=lambda: reader.clock)
    known = {"step_s": 0.1, "read_s": reader._token_s, "reach": [[0.9] * 9] * 2, "sampled": [], "greedy": []}
    chooser.recall({**chooser.as_json(), "rounds": 1, "drafters": {"reader": known}})
    text = Text()
    chooser.begin(text, Sampler(SamplerSettings(), ()))
    seconds, left = 0.0, n_tokens
    while left > 0:
        began, text.room = reader.clock, left
        draft = chooser.draft(left - 1) if left > 1 else EMPTY
        draft_s = reader.clock - began
        tokens = (1,) * (1 + len(draft))
        text.tokens += tokens
        chooser.learn(Round(tokens, len(draft), (1,) * len(draft), 1 + len(draft), draft_s, 1.0, 0.0))
        seconds, left = seconds + draft_s + 1.0, left - len(tokens)
    return seconds


def test_a_short_reply_does_not_pay_for_reading_a_long_prompt() -> None:
    reader = Reader(3000, token_s=0.01)
    assert seconds_of(reader, 24) == 24
    assert reader.n_unread() == 3000


def test_a_long_reply_does() -> None:
    reader = Reader(3000, token_s=0.01)
    assert seconds_of(reader, 1000) < 600
    assert reader.n_unread() == 0


def test_a_short_text_is_read_for_a_short_reply() -> None:
    reader = Reader(100, token_s=0.01)
    assert seconds_of(reader, 64) < 40
    assert reader.n_unread() == 0


@pytest.mark.long
@pytest.mark.parametrize("token_s", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("n_unread", [16, 100, 1000, 10_000])
@pytest.mark.parametrize("n_tokens", [8, 64, 128, 1000])
def test_whatever_is_to_be_read_it_costs_little(n_tokens: int, n_unread: int, token_s: float) -> None:
    """Against plain decoding, though nobody knows how long a reply goes on."""
    assert seconds_of(Reader(n_unread, token_s), n_tokens) < 1.05 * n_tokens + 1


def test_replies_are_expected_to_be_as_long_as_others() -> None:
    """A long text is read where replies are long, and not where they were short, however long they may become."""
    for usual, reads in ((10, False), (1000, True)):
        reader = Reader(0, token_s=0.01)
        chooser = Chooser([reader], seconds={n: 1.0 for n in range(1, 11)}, clock=lambda reader=reader: reader.clock)  # type: ignore[misc]
        known = {"step_s": 0.1, "read_s": 0.01, "reach": [[0.9] * 9] * 2, "sampled": [], "greedy": []}
        chooser.recall({**chooser.as_json(), "rounds": 1, "drafters": {"reader": known}})
        for _ in range(20):
            chooser.begin(Text(), Sampler(SamplerSettings(), ()))
            for _ in range(usual):
                chooser.learn(Round((1,), 0, (), 1, 0.0, 1.0, 0.0))
        chooser.begin(Text(), Sampler(SamplerSettings(), ()))
        reader._n_unread = 3000
        chooser.text.room = 1000
        chooser.draft(9)
        assert (reader.n_unread() < 3000) == reads
