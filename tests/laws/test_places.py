"""Laws of models that cannot go back anywhere: recurrent ones, whose state every token changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculator_replies import reply_of, step
from watched_table import watch
from weekly import sizes

from edge_spec.engines.places import Places
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.language_model import ANYWHERE, Capabilities
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table

TABLE = random_table(5, order=1, seed=4)


@pytest.mark.parametrize("n_cases", sizes(200, weekly=2_000, loop=40))
def test_text_is_identical_with_every_drafter(cases: st.SearchStrategy[Any], n_cases: int) -> None:
    @given(cases)
    @settings(max_examples=n_cases)
    def is_identical(drawn: Any) -> None:
        case = dataclasses.replace(drawn, recurrent=True)
        plain = dataclasses.replace(case, recurrent=False).generation(drafts=False)
        expected = (plain.read(), plain.token_ids, plain.finish_reason)
        for drafts in (True, False):
            reply = case.generation(drafts=drafts)
            assert (reply.read(), reply.token_ids, reply.finish_reason) == expected

    is_identical()


@pytest.mark.long
@given(st.data(), st.integers(0, 4))
@settings(max_examples=300)
def test_the_nearest_place_is_the_last_one_with_a_state(data: st.DataObject, n_snapshots: int) -> None:
    """Against a list of all states that are there."""
    places = Places(n_snapshots)
    at, near, copies = 0, {0}, set[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["compute", "back", "copy", "move", "damage"]))
        if step == "compute":
            n_rows = data.draw(st.integers(1, 6))
            places.computed(at + n_rows, n_rows)
            at += n_rows
            near = {at - back for back in range(min(n_snapshots, n_rows - 1) + 1)}
        elif step == "copy" and at in near:
            places.copies[at] = "a copy"
            copies.add(at)
        elif step == "move" and at in near:
            places.moved(at)
            near = {at}
        else:
            if step == "damage":
                places.damaged()
                near = set()
            wanted = data.draw(st.integers(0, at))
            at = max(place for place in {0, *copies, *near} if place <= wanted)
            copies = {place for place in copies if place <= at}
            assert places.nearest(wanted) == at
            assert set(places.copies) == copies
            places.moved(at)
            near = {at}


@pytest.mark.long
@given(st.data(), st.integers(0, 3), st.sampled_from([(2, 4), (1, 2, 3, 4)]))
@settings(max_examples=200)
def test_a_text_is_followed_through_every_change(
    data: st.DataObject, n_snapshots: int, widths: tuple[int, ...]
) -> None:
    """Whatever is kept, forgotten, read or begun: the cache holds the text's beginning, and the rows are its own."""
    most = n_snapshots + 1
    model = TableModel(TABLE, n_snapshots=n_snapshots, max_rows=most, widths=(*widths[: most - 1], most))
    followed, seen = Follower(model), Follower(TableModel(TABLE))
    tokens = st.lists(st.integers(0, 4), min_size=1, max_size=9)
    followed.follow(Text(data.draw(tokens)), reuse=False)
    for _ in range(data.draw(st.integers(1, 10))):
        step = data.draw(st.sampled_from(["round", "begin", "rollback", "read", "hold", "save"]))
        if step == "round":
            drafts = data.draw(st.lists(st.integers(0, 4), max_size=most))
            text = followed.uncommitted(most)
            rows = followed.decode(Tree.sequence([*text, *drafts][:most])).copy()
            n_kept = data.draw(st.integers(len(text), len(rows)))
            seen.follow(Text(followed.text.tokens), reuse=True)
            own = seen.uncommitted(1)
            assert rows[len(text) - 1].tolist() == seen.model.decode(Tree.sequence(own))[-1].tolist()
            followed.text.tokens += [*drafts[: n_kept - len(text)], data.draw(st.integers(0, 4))]
            if data.draw(st.booleans()):
                # Else what became text is kept as soon as the model is asked again.
                followed.keep(range(n_kept))
        elif step == "begin":
            same = data.draw(st.integers(0, len(followed.text)))
            followed.follow(Text([*followed.text.tokens[:same], *data.draw(tokens)]), reuse=data.draw(st.booleans()))
        elif step == "rollback":
            followed.rollback(data.draw(st.integers(1, len(followed.text))))
        elif step == "read":
            followed.read()
        elif step == "hold":
            model.hold()
        else:
            state = followed.save()
            followed.restore(state, list(followed.text.tokens))
        if step != "hold":
            followed.read()
        assert list(model.cells) == followed.text.tokens[: model.n_past]


def test_what_was_held_is_read_no_second_time() -> None:
    model = TableModel(TABLE, n_snapshots=0, rollback=ANYWHERE)
    model.prefill([1, 2, 3])
    model.hold()
    model.decode(Tree.sequence([4]))
    model.decode(Tree.sequence([4, 0]))
    model.keep([0])
    assert model.cells == (1, 2, 3)
    model.decode(Tree.sequence([4, 0]))
    model.keep([0, 1])
    assert model.cells == (1, 2, 3, 4, 0)
    model.rollback(4)
    assert model.cells == (1, 2, 3)
    model.rollback(2)
    assert model.cells == ()


def test_no_decode_has_more_rows_than_can_be_taken_back() -> None:
    with pytest.raises(ValueError, match="taken back"):
        Capabilities(rollback=3, takes_trees=False, widths=(), max_rows=5)
    assert TableModel(TABLE, n_snapshots=3).capabilities.max_rows == 4


class Ones(Drafter):
    """Drafts as much as it may."""

    def draft(self, limit: int) -> Tree:
        return Tree.sequence([1] * limit)


@pytest.mark.parametrize("n_snapshots", [1, 3, 7])
def test_drafts_are_as_long_as_can_be_taken_back(n_snapshots: int) -> None:
    speculator = Slot(TableModel(TABLE, n_snapshots=n_snapshots), Ones())
    prompt = [3, 4]
    speculator.begin(prompt, Sampler(SamplerSettings(temperature=0.0), prompt), reuse=False)
    speculator.read()
    done = step(speculator, 9)
    assert done.n_rows == n_snapshots + 1


class Counted(TableModel):
    """A recurrent drafter's model that counts the tokens that it computes."""

    def __init__(self, seed: int) -> None:
        like = random_table(5, order=1, seed=seed, scale=1.0, like=TABLE)
        super().__init__(like, n_snapshots=0, rollback=ANYWHERE, takes_trees=False, max_rows=8)
        self.n_computed = 0
        watch(self, self._count)

    def _count(self, parts: Any, is_decode: bool) -> None:
        self.n_computed += sum(len(part.tokens) for part in parts)


@pytest.mark.parametrize("nested", [False, True], ids=["sequence", "hierarchy"])
def test_a_recurrent_drafter_computes_a_text_a_few_times_at_most(letters: Callable[..., Any], nested: bool) -> None:
    """What is rejected takes it back to what was certain, never to the beginning."""
    models = [Counted(seed) for seed in ((7, 8) if nested else (7,))]
    drafter: Drafter = ModelDrafter(models[0])
    if nested:
        drafter = HierarchyDrafter(drafter, models[1])
    speculator = Slot(TableModel(TABLE, n_snapshots=3, takes_trees=False), drafter)
    reply = reply_of(speculator, lambda: 3, letters(), [1] * 50, SamplerSettings(seed=3), max_tokens=400)
    reply.read()
    rejected = reply.statistics.drafted - reply.statistics.accepted
    assert rejected > 50
    for model in models:
        assert model.n_computed < 5 * (450 + rejected)
