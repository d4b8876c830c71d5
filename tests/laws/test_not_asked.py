"""Laws of drafters that are not asked: what costs too much is left alone, and nobody misses any of the text."""

from __future__ import annotations

from time import perf_counter

import pytest
from speculator_replies import step

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.testing import TableModel, random_table

TABLE = random_table(7, order=2, seed=4)
SAMPLING = SamplerSettings(seed=9, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = [3, 1]


class Slow(Drafter):
    """A table that takes its time and finds nothing; it counts its calls and keeps what it has seen of the text."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.seen: list[int] = []
        self.n_called = 0

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self.cursor = text.cursor()
        self.seen = []

    def draft(self, limit: int) -> Tree:
        self.n_called += 1
        del self.seen[self.cursor.position :]
        self.seen += self.text.since(self.cursor)
        until = perf_counter() + self.seconds
        while perf_counter() < until:
            pass
        return EMPTY


def written(drafter: Drafter, n: int) -> Slot:
    speculator = Slot(TableModel(TABLE, n_ctx=4096), drafter)
    speculator.begin(PROMPT, Sampler(SAMPLING, PROMPT), reuse=False)
    for _ in range(n):
        step(speculator, 9)
    return speculator


def test_a_drafter_that_costs_too_much_is_left_alone_and_misses_nothing() -> None:
    slow = Slow(0.02)
    chooser = Chooser([slow])
    speculator = written(chooser, 600)
    assert slow.n_called < 20
    assert len(slow.seen) < len(speculator.text)
    assert chooser.choices["off"].rounds == 600
    assert chooser.has_learned and chooser.as_json()["rounds"] == 600
    slow.draft(3)
    assert slow.seen == speculator.text


@pytest.mark.parametrize("length", [1, 2, 50, 150])
def test_a_text_that_was_changed_meanwhile_is_known(length: int) -> None:
    slow = Slow(0.02)
    speculator = written(Chooser([slow]), 200)
    speculator.replace(length, [1, 2])
    slow.draft(3)
    assert slow.seen == speculator.text
    speculator.cut(0, 1)
    slow.draft(3)
    assert slow.seen == speculator.text


def test_a_reply_that_begins_has_a_text_of_its_own() -> None:
    slow = Slow(0.02)
    chooser = Chooser([slow])
    written(chooser, 200)
    chooser.begin(Text([5]), Sampler(SAMPLING, [5]))
    chooser.text.tokens.append(6)
    slow.draft(3)
    assert slow.seen == [5, 6]


def test_an_index_that_is_asked_late_drafts_the_same() -> None:
    early, late = NgramDrafter(), NgramDrafter()
    text = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2, 3, 4]
    texts = Text(text[:3]), Text(text[:3])
    for drafter, own in zip((early, late), texts, strict=True):
        drafter.begin(own, Sampler(SAMPLING, own.tokens))
    for token in text[3:]:
        texts[0].tokens.append(token)
        early.draft(4)
    texts[1].tokens += text[3:]
    assert late.draft(4).tokens == early.draft(4).tokens != ()
    for own in texts:
        own.shorten(6)
        own.tokens += [2, 3]
    assert late.draft(4).tokens == early.draft(4).tokens != ()


class Told(Drafter):
    """A table that finds something, or nothing, as it is told."""

    name = "told"
    finds = False
    n_called = 0

    def draft(self, limit: int) -> Tree:
        self.n_called += 1
        return Tree.sequence([1, 1, 1], (0.9, 0.81, 0.73)).first(limit) if self.finds else EMPTY


def rounds(chooser: Chooser, told: Told, n: int, *, finds: bool) -> int:
    """Return how often a table was asked in some rounds of 10 ms, each of which takes 0.1 ms to ask."""
    before, told.finds = told.n_called, finds
    for _ in range(n):
        asked = told.n_called
        draft = chooser.draft(9)
        tokens = (1,) * (len(draft) + 1)
        asking_s = 1e-4 * (told.n_called - asked)
        chooser.learn(Round(tokens, len(draft), (1,) * len(draft), len(draft) + 1, asking_s, 1e-2, 0.0))
    return told.n_called - before


def test_a_table_that_pays_for_its_calls_is_asked_in_every_round() -> None:
    """A copy now and then brings rounds of 10 ms; asking takes a hundredth of one. In vain it is asked less."""
    told = Told()
    chooser = Chooser([told], seconds={1: 1e-2, 8: 1e-2}, clock=lambda: 1e-4 * told.n_called)
    chooser.begin(Text(), Sampler(SAMPLING, ()))
    rounds(chooser, told, 50, finds=False)
    assert rounds(chooser, told, 500, finds=False) < 100
    rounds(chooser, told, 20, finds=True)
    assert rounds(chooser, told, 40, finds=False) == 40
    rounds(chooser, told, 500, finds=False)
    assert rounds(chooser, told, 500, finds=False) < 100
