"""Laws of drafters: what they may guess, what they cost, and that sharing the noise makes them guess well."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from speculator_replies import step
from watched_table import watch

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table

TABLE = random_table(7, order=2, seed=4)
SAMPLING = SamplerSettings(seed=9, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Counted(TableModel):
    """Counts its decodes and rows."""

    def __init__(self, table: Logits, **values: Any) -> None:
        super().__init__(table, **values)
        self.widths: list[int] = []
        watch(self, self._count)

    def _count(self, parts: Any, is_decode: bool) -> None:
        if is_decode:
            self.widths.append(sum(len(part.tokens) for part in parts))


def begun(drafter: Drafter, prompt: list[int], sampling: SamplerSettings = SAMPLING) -> Drafter:
    # As the loop does it: what a drafter picks does not move mirostat's mu.
    drafter.begin(Text(prompt), Sampler(sampling, prompt).view())
    return drafter


def continuation(table: Logits, prompt: list[int], n: int, sampling: SamplerSettings = SAMPLING) -> list[int]:
    """Return what a model with this table writes, or would guess."""
    sampler, text = Sampler(sampling, prompt).view(), list(prompt)
    for _ in range(n):
        before = [0, 0, *text]
        text.append(sampler.pick(table[before[-2], before[-1]], text))
    return text[len(prompt) :]


# --- all of them


@pytest.mark.long
@given(st.data())
@settings(max_examples=250)
def test_a_draft_keeps_its_limit_and_its_values_fall(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    drafter = case.speculator().drafter
    assert isinstance(drafter, Drafter)
    begun(drafter, case.prompt, case.sampling)
    chance = random.Random(case.seed)
    for _ in range(4):
        limit = chance.randint(0, 9)
        draft = drafter.draft(limit)
        assert len(draft) <= limit
        assert all(0 <= token < case.n_vocab for token in draft.tokens)
        for node, value in enumerate(draft.values):
            parent = draft.parents[node]
            assert 0 <= value <= (draft.values[parent] if parent >= 0 else 1)
        siblings = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(siblings)) == len(siblings), "the same guess twice"
        drafter.text.tokens.extend([chance.randrange(case.n_vocab) for _ in range(chance.randint(1, 3))])


@pytest.mark.long
@given(st.data())
@settings(max_examples=150)
def test_drafting_twice_without_a_verdict_guesses_the_same(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    # Choosing, it may choose otherwise the second time.
    assume(case.recipe[0] not in ("choice", "shared"))
    drafter = begun(case.speculator().drafter, case.prompt, case.sampling)
    first = drafter.draft(4)
    assert drafter.draft(4) == first


@pytest.mark.long
@given(st.data())
@settings(max_examples=150)
def test_after_a_rollback_the_same_is_guessed_again(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    assume(case.recipe[0] not in ("choice", "shared"))
    drafter = begun(case.speculator().drafter, case.prompt, case.sampling)
    chance = random.Random(case.seed)
    first = drafter.draft(4)
    for _ in range(2):
        drafter.draft(chance.randint(0, 5))
        drafter.text.tokens.extend([chance.randrange(case.n_vocab) for _ in range(chance.randint(1, 4))])
    drafter.text.shorten(len(case.prompt))
    again = drafter.draft(4)
    # An n-gram drafter's opinion of itself may have changed, its guess not.
    assert (again.tokens, again.parents) == (first.tokens, first.parents)


def test_plain_decoding_drafts_nothing() -> None:
    assert not begun(NoDrafter(), [1]).draft(5)


# --- a smaller model


@pytest.mark.long
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_a_chain_is_what_its_model_would_write(prompt: list[int], limit: int, seed: int) -> None:
    sampling = SamplerSettings(seed=seed, temperature=0.8)
    draft = begun(ModelDrafter(TableModel(TABLE)), prompt, sampling).draft(limit)
    assert draft.is_sequence
    assert list(draft.tokens) == continuation(TABLE, prompt, limit, sampling)


@given(st.integers(2, 5), st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32))
def test_a_tree_begins_with_what_its_model_would_write(width: int, depth: int, limit: int, seed: int) -> None:
    sampling = SamplerSettings(seed=seed, temperature=0.8)
    model = Counted(TABLE)
    draft = begun(ModelDrafter(model, width=width, depth=depth), [1, 2], sampling).draft(limit)
    assert max(draft.depths) < depth
    assert len(model.widths) <= depth
    assert max(model.widths[1:], default=0) <= width
    # The likeliest child comes first, and is what the model itself picks after the path so far.
    expected = continuation(TABLE, [1, 2], depth, sampling)
    assert draft.tokens[0] == expected[0]


def test_a_model_that_is_the_target_is_always_right() -> None:
    for sampling in (SAMPLING, SamplerSettings(temperature=0), SamplerSettings(seed=3, repeat_penalty=1.3)):
        target = TableModel(TABLE)
        speculator = Slot(target, ModelDrafter(TableModel(TABLE)))
        speculator.begin([3], Sampler(sampling, [3]), reuse=False)
        for _ in range(30):
            assert len(step(speculator, 4).tokens) == 5


def test_sharing_the_noise_guesses_better_than_the_likeliest_token() -> None:
    """A drafter of a similar law agrees with the draw more often than its most probable token would."""
    like = random_table(7, order=2, seed=5, scale=0.5, like=TABLE)
    shared = likeliest = 0
    for seed in range(400):
        sampling = SamplerSettings(seed=seed, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        prompt = [seed % 7, seed // 7 % 7]
        drawn = continuation(TABLE, prompt, 1, sampling)[0]
        shared += begun(ModelDrafter(TableModel(like)), prompt, sampling).draft(1).tokens[0] == drawn
        likeliest += int(like[prompt[0], prompt[1]].argmax()) == drawn
    assert shared > likeliest + 40


def test_a_drafter_decodes_each_token_once() -> None:
    """Chains cost one row per guess, and catching up with what was accepted costs no decode of its own."""
    model = Counted(TABLE)
    speculator = Slot(TableModel(TABLE), ModelDrafter(model))
    speculator.begin([3], Sampler(SAMPLING, [3]), reuse=False)
    for _ in range(10):
        model.widths.clear()
        step(speculator, 4)
        assert len(model.widths) == 4
        assert model.widths[1:] == [1, 1, 1]
        assert model.widths[0] <= 2


@pytest.mark.parametrize("wrong", [{"width": 0}, {"depth": 0}], ids=str)
def test_a_tree_of_no_size_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError):
        ModelDrafter(TableModel(TABLE), **wrong)


def test_a_model_that_cannot_do_what_drafting_takes_is_refused() -> None:
    with pytest.raises(SettingsError, match="trees") as caught:
        ModelDrafter(TableModel(TABLE, takes_trees=False), width=2)
    assert caught.value.hint
    ModelDrafter(TableModel(TABLE, takes_trees=False))
    stuck = TableModel(TABLE, n_snapshots=0)
    for build in (lambda: ModelDrafter(stuck), lambda: HierarchyDrafter(NoDrafter(), stuck)):
        with pytest.raises(SettingsError, match="back"):
            build()


# --- copying


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 2), st.integers(1, 6))
def test_the_longest_and_latest_match_is_copied(text: list[int], shortest: int, more: int, limit: int) -> None:
    draft = begun(NgramDrafter(longest=shortest + more, shortest=shortest), text).draft(limit)
    expected: list[int] = []
    for n in range(shortest + more, shortest - 1, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:] and n <= len(text)]
        if ends:
            expected = text[ends[-1] : ends[-1] + limit]
            break
    assert list(draft.tokens) == expected


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_drafter_stops_where_it_is_asked_to(most: int) -> None:
    asked: list[int] = []

    def worth_more(drafts: Sequence[Tree]) -> bool:
        asked.append(len(drafts[0]))
        return len(drafts[0]) < most

    counted = Counted(TABLE)
    drafter = begun(ModelDrafter(counted), [3, 1])
    assert len(drafter.draft_all_while([drafter], [9], worth_more)[0]) == most
    assert asked == list(range(1, most + 1))
    assert len(counted.widths) <= most


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.data())
def test_an_index_that_was_rolled_back_is_the_index_of_the_shorter_text(text: list[int], data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(text)))
    used, fresh = NgramDrafter(), NgramDrafter()
    begun(used, text[:1])
    used.text.tokens.extend(text[1:])
    used.draft(3)
    used.text.shorten(length)
    begun(fresh, text[:length])
    assert used.draft(3).tokens == fresh.draft(3).tokens
    assert used._known == fresh._known
    for token in (*text, *text):
        used.text.tokens.extend([token])
        fresh.text.tokens.extend([token])
        assert used.draft(3).tokens == fresh.draft(3).tokens


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (2, 0), (0, 0)])
def test_ngrams_of_no_length_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(SettingsError):
        NgramDrafter(longest=longest, shortest=shortest)


# --- the hierarchy


@pytest.mark.long
@given(st.data(), st.integers(1, 9))
@settings(max_examples=150)
def test_a_hierarchy_drafts_what_its_intermediate_model_would_write(
    cases: st.SearchStrategy[Any], data: st.DataObject, limit: int
) -> None:
    case = data.draw(cases)
    intermediate = random_table(case.n_vocab, order=2, seed=case.seed)
    drafter = HierarchyDrafter(case.speculator().drafter, TableModel(intermediate), leaf_limit=3)
    draft = begun(drafter, case.prompt, case.sampling).draft(limit)
    assert draft.is_sequence
    before = [0, 0, *case.prompt]
    assert len(before) >= 3
    assert list(draft.tokens) == continuation(intermediate, case.prompt, limit, case.sampling)


def test_a_good_leaf_saves_decodes_of_the_intermediate_model() -> None:
    decodes = []
    leaves: list[Callable[[], Drafter]] = [NoDrafter, lambda: ModelDrafter(TableModel(TABLE))]
    for leaf in leaves:
        intermediate = Counted(TABLE)
        begun(HierarchyDrafter(leaf(), intermediate), [1, 2]).draft(8)
        decodes.append(len(intermediate.widths))
    assert decodes == [8, 2]


def test_an_accepted_inner_round_may_exceed_where_a_draft_would_stop() -> None:
    """As in the paper: a rule that stops at two tokens is asked between rounds of the intermediate model, and keeps
    what the last of them has accepted; only the limit is never exceeded."""
    for limit, expected in ((9, 4), (3, 3)):
        drafter = begun(HierarchyDrafter(ModelDrafter(TableModel(TABLE)), TableModel(TABLE)), [1, 2])
        (draft,) = drafter.draft_all_while([drafter], [limit], lambda drafts: len(drafts[0]) < 2)
        assert list(draft.tokens) == continuation(TABLE, [1, 2], expected)


def test_a_table_can_be_the_leaf() -> None:
    """It saves decodes of an intermediate model that repeats itself."""
    table = np.full((7, 7, 7), -9.0, dtype=np.float32)
    for token in range(7):
        table[:, token, (token + 1) % 4] = 9.0
    intermediate = Counted(table)
    prompt = [0, 1, 2, 3] * 3
    draft = begun(HierarchyDrafter(NgramDrafter(), intermediate), prompt).draft(8)
    assert list(draft.tokens) == [0, 1, 2, 3] * 2
    assert len(intermediate.widths) == 2


def test_what_the_target_agreed_with_is_not_drafted_again() -> None:
    intermediate = Counted(TABLE)
    drafter = begun(HierarchyDrafter(NoDrafter(), intermediate), [1, 2])
    draft = drafter.draft(6)
    intermediate.widths.clear()
    drafter.text.tokens.extend(draft.tokens[:4])
    assert drafter.draft(2).tokens == draft.tokens[4:]
    assert not intermediate.widths
    assert np.array_equal(intermediate.cells[:6], (1, 2, *draft.tokens[:4]))


def test_a_hierarchy_that_was_restored_can_be_saved_before_it_drafts() -> None:
    drafter = begun(HierarchyDrafter(NgramDrafter(), TableModel(TABLE)), [1, 2, 3])
    drafter.draft(6)
    states = drafter.save()
    other = HierarchyDrafter(NgramDrafter(), TableModel(TABLE))
    other.restore(states, [1, 2, 3])
    assert other.save() == states
    other.restore({}, [1, 2, 3])
    assert other.n_unread() == 0 and other.followed["hierarchy.target"].model.n_past == 0
