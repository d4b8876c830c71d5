"""Laws of rounds in which drafters are paused: no drafter is called, and none misses any of the text."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import pytest

from edge_spec.engines.table import TableModel, random_table
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.adaptive.pauses import Pauses
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.policy import FixedPolicy
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree

TABLE = random_table(7, order=2, seed=4)
SAMPLING = SamplerSettings(seed=9, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = [3, 1]


class Slow(Drafter):
    """A table that takes its time and finds nothing; it counts its calls."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.text: list[int] = []
        self.n_told = self.n_called = 0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.text = list(prompt)

    def accept(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)
        self.n_told += 1

    def rollback(self, length: int) -> None:
        del self.text[length:]

    def draft(self, limit: int) -> Tree:
        self.n_called += 1
        until = perf_counter() + self.seconds
        while perf_counter() < until:
            pass
        return EMPTY


def written(drafter: Drafter, n: int) -> Speculator:
    speculator = Speculator(TableModel(TABLE, n_ctx=4096), drafter)
    speculator.begin(PROMPT, Sampler(SAMPLING, PROMPT), reuse=False)
    for _ in range(n):
        speculator.step(FixedPolicy(9), 9, lambda token: False)
    return speculator


def test_a_drafter_that_costs_too_much_is_paused_and_misses_nothing() -> None:
    slow = Slow(0.02)
    adaptive = AdaptiveDrafter([slow], AdaptivePolicy())
    speculator = written(adaptive, 600)
    assert slow.n_called < 20
    assert slow.n_told < 40
    before = len(slow.text)
    assert before < len(speculator.text)
    assert adaptive.choices["off"].rounds == 600
    assert adaptive.has_learned and adaptive.as_json()["rounds"] == 600
    assert adaptive.choices["off"].rounds == 600
    # What looks at the text or changes it finds all of it.
    speculator.end_reply()
    assert slow.text == speculator.text
    assert adaptive.choices["off"].rounds == 600


@pytest.mark.parametrize("change", ["save", "draft", "rollback"])
def test_drafters_know_the_whole_text_when_it_matters(change: str) -> None:
    slow = Slow(0.02)
    adaptive = AdaptiveDrafter([slow], AdaptivePolicy())
    speculator = written(adaptive, 200)
    assert len(slow.text) < len(speculator.text)
    if change == "rollback":
        speculator.replace(50, [1, 2])
        adaptive.draft(3)
    elif change == "save":
        speculator.save()
    else:
        adaptive.draft(3)
    assert slow.text == speculator.text


def test_a_reply_that_begins_forgets_what_was_not_told() -> None:
    slow = Slow(0.02)
    adaptive = AdaptiveDrafter([slow], AdaptivePolicy())
    written(adaptive, 200)
    adaptive.begin([5], Sampler(SAMPLING, [5]))
    adaptive.accept([6])
    assert slow.text == [5, 6]


def test_an_index_that_is_told_late_drafts_the_same() -> None:
    early, late = NgramDrafter(), NgramDrafter()
    text = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2, 3, 4]
    for drafter in (early, late):
        drafter.begin(text[:3], Sampler(SAMPLING, text[:3]))
    for token in text[3:]:
        early.accept([token])
        early.draft(4)
    late.accept(text[3:])
    assert late.draft(4).tokens == early.draft(4).tokens != ()
    for drafter in (early, late):
        drafter.rollback(6)
        drafter.accept([2, 3])
    assert late.draft(4).tokens == early.draft(4).tokens != ()


class Paused(Drafter):
    """Is paused from the beginning; notes every call."""

    def __init__(self, n_rounds: int) -> None:
        self._pause = Pause()
        self._pause.n_left = n_rounds
        self.calls: list[str] = []

    @property
    def pause(self) -> Pause:
        return self._pause

    def limit(self, left: int) -> int:
        self.calls.append("limit")
        return 9

    def draft(self, limit: int) -> Tree:
        self.calls.append("draft")
        return EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        self.calls.append(f"accept {len(tokens)}")

    def learn(self, done: Round) -> None:
        self.calls.append("learn")


def test_a_paused_drafter_is_not_called_at_all() -> None:
    drafter = Paused(5)
    # The first round has two rows, the others one each.
    speculator = written(drafter, 6)
    whole_round = ["limit", "draft", "accept 1", "learn"]
    assert drafter.calls == whole_round
    pause = drafter.pause
    assert (pause.n_left, pause.n_rounds, pause.tokens) == (0, 5, speculator.text[len(PROMPT) + 1 :])
    assert pause.verify_s > 0 < pause.own_s
    speculator.step(FixedPolicy(9), 9, lambda token: False)
    assert drafter.calls == 2 * whole_round


def test_a_pause_changes_no_token() -> None:
    assert written(Paused(20), 40).text == written(Paused(0), 40).text == written(Drafter(), 40).text


def test_drafters_that_pay_for_their_calls_are_called_in_every_round() -> None:
    """A copy now and then brings a round of 10 ms; calling takes a hundredth of it."""
    pauses = Pauses()
    lengths = [pauses.after_no_draft(1e-4, 1e-2) for _ in range(5)]
    assert lengths == sorted(lengths)
    assert lengths[0] > 0
    for _ in range(20):
        pauses.drafted(1e-2)
        assert [pauses.after_no_draft(1e-4, 1e-2) for _ in range(9)] == [0] * 9


def test_calls_in_vain_take_less_and_less_of_the_time() -> None:
    pauses = Pauses()
    shares = [1e-4 / (pauses.after_no_draft(1e-4, 1e-3) * 1e-3) for _ in range(20)]
    assert shares[0] == pytest.approx(0.005)
    assert shares[-1] < 0.001
    # Drafts that lose time are no reason to call.
    pauses.drafted(-1e-3)
    assert pauses.after_no_draft(1e-4, 1e-3) > 0
