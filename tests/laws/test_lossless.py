"""Laws of ``require_lossless``: drafters that keep to the rules pass it, and whatever changes a text is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge_spec.errors import SettingsError
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.language_model import ANYWHERE, Logits
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.testing import TableModel, random_table, require_lossless


def small(table: Logits, *, scale: float = 0.5, n_snapshots: int | None = None) -> TableModel:
    """A model that often agrees with the one of a table."""
    like = random_table(len(table), seed=1, scale=scale, like=table)
    rollback = None if n_snapshots is None else ANYWHERE
    return TableModel(like, takes_trees=n_snapshots is None, n_snapshots=n_snapshots, rollback=rollback)


@pytest.mark.parametrize(
    ("make_drafter", "least"),
    [
        (lambda table: NgramDrafter(), 0.1),
        (lambda table: ModelDrafter(small(table)), 0.5),
        (lambda table: ModelDrafter(small(table, n_snapshots=0)), 0.5),
        (lambda table: ModelDrafter(small(table), width=3, depth=3), 0.3),
        (lambda table: HierarchyDrafter(ModelDrafter(small(table, scale=1.0)), small(table)), 0.5),
        (lambda table: ModelDrafter(TableModel(table), depth=3), 0.95),
    ],
    ids=["ngram", "sequence", "recurrent", "tree", "hierarchy", "the target itself"],
)
def test_drafters_keep_the_law(make_drafter: Callable[[Logits], Drafter], least: float) -> None:
    assert least < require_lossless(make_drafter, n_cases=20) <= 1


class Zeros(Drafter):
    """Guesses the same token again and again."""

    def draft(self, limit: int) -> Tree:
        return Tree.sequence([0] * limit)


class Replaces(Zeros):
    """Changes the last token of its text."""

    def draft(self, limit: int) -> Tree:
        if len(self.text) > 25:
            self.text.tokens[-1] = 0
        return super().draft(limit)


class Appends(Zeros):
    """Takes its guess for text."""

    def draft(self, limit: int) -> Tree:
        if len(self.text) == 20:
            self.text.tokens.append(0)
        return super().draft(limit)


@pytest.mark.parametrize("wrong", [Replaces, Appends])
def test_a_drafter_that_changes_the_text_is_found_and_its_case_can_be_repeated(wrong: type[Drafter]) -> None:
    with pytest.raises(AssertionError, match=r"drafts changed the text after .* n_cases=1 and seed=\d+") as caught:
        require_lossless(lambda table: wrong(), n_cases=50)
    seed = int(str(caught.value).partition("seed=")[2].split()[0])
    with pytest.raises(AssertionError) as again:
        require_lossless(lambda table: wrong(), n_cases=1, seed=seed)
    assert str(again.value) == str(caught.value)


def test_a_drafter_that_drafts_nothing_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="nothing was drafted in 3 cases"):
        require_lossless(lambda table: Drafter(), n_cases=3)


def test_what_a_drafter_raises_is_raised() -> None:
    class Fails(Zeros):
        def draft(self, limit: int) -> Tree:
            return EMPTY if len(self.text) < 20 else self.text.no_such_thing  # type: ignore[attr-defined,no-any-return]

    class NoTree(Zeros):
        def draft(self, limit: int) -> Tree:
            return [0] * limit  # type: ignore[return-value]

    with pytest.raises(AttributeError, match="no_such_thing"):
        require_lossless(lambda table: Fails(), n_cases=20)
    with pytest.raises(SettingsError, match="in place of a Tree"):
        require_lossless(lambda table: NoTree(), n_cases=20)


def test_cases_are_equal_for_equal_seeds_and_of_several_vocabularies() -> None:
    sizes = set[int]()

    def seen(table: Logits) -> Drafter:
        sizes.add(len(table))
        return Zeros()

    assert require_lossless(seen, n_cases=15) == require_lossless(seen, n_cases=15)
    assert sizes <= {3, 4, 5, 6, 7, 8} and len(sizes) > 3
    assert require_lossless(seen, n_cases=5, seed=15) != require_lossless(seen, n_cases=5)
