"""Laws of probing: a width whose rows or cells differ anywhere in tens of places is never said to be alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rounding_model import RoundingModel, exact

from edge_spec.engines.probe import OWN_READINGS, probe
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

EVERY = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


def widths_of(**values: Any) -> tuple[int, ...]:
    model = RoundingModel(**values)
    found = probe(model).capabilities
    assert model.n_past == 0
    assert found.identity == ("bitwise" if found.widths else "rounding")
    return found.widths


def test_a_model_that_rounds_everything_alike_takes_every_width_and_trees() -> None:
    found = probe(RoundingModel()).capabilities
    assert (found.widths, found.max_rows, found.takes_trees, found.reuse_step) == (EVERY, 16, True, 1)


@pytest.mark.parametrize("first", range(30))
def test_wide_decodes_that_differ_at_one_depth_in_thirty_are_found(first: int) -> None:
    """Whether the depth is that of the decode's beginning or that of the row."""
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows > 3 and n_past % 30 == first) == (1, 2, 3)
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows > 3 and (n_past + row) % 30 == first) == (1, 2, 3)


@pytest.mark.parametrize("n_ctx", [200, 640])
@pytest.mark.parametrize("seed", range(12))
def test_single_rows_that_differ_in_one_of_thirty_are_found(seed: int, n_ctx: int) -> None:
    """By the text, as the sums of two kernels do: anywhere, without a period."""
    chosen = np.random.default_rng(seed).random(n_ctx) < 1 / 30
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows == 1 and chosen[n_past], n_ctx=n_ctx) == EVERY[1:]


def test_where_single_rows_are_other_code_they_are_padded() -> None:
    assert probe(RoundingModel(), lone=False).capabilities.widths == EVERY[1:]
    assert probe(RoundingModel(max_rows=1), lone=False).capabilities.widths == (1,)


@pytest.mark.parametrize("first", range(0, 30, 7))
@pytest.mark.parametrize("widest", [2, 7, 12])
def test_only_the_widths_below_one_that_differs_remain(widest: int, first: int) -> None:
    expected = tuple(n for n in EVERY if n <= widest)
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows > widest and n_past % 30 == first) == expected


def test_cells_that_differ_are_found_where_rows_hide_it() -> None:
    """Rows show the cells before them; those of the last tokens of a text are seen in the cache alone."""
    last = (24 + 32 - 1,)
    assert widths_of(cells=lambda n_rows, n_past, row: n_rows > 3 and n_past + row in last) == (1, 2, 3)


@pytest.mark.parametrize("depth", [250, 260, 510, 520])
def test_a_path_that_is_taken_in_long_texts_only_is_found(depth: int) -> None:
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows == 1 and n_past >= depth) == EVERY[1:]
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows == 1 and n_past >= depth, n_ctx=240) == EVERY


def test_a_class_has_no_gaps() -> None:
    """Widths that seem to agree beyond one that does not agree by chance."""
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows in (2, 3)) == (2, 3)
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows in (6, 8)) == (1, 2, 3, 4, 5)
    assert widths_of(rows=lambda n_rows, n_past, row: n_rows == 3) == (1, 2)


def test_widths_that_all_differ_are_said_to_round() -> None:
    model = RoundingModel(rows=lambda n_rows, n_past, row: n_rows)
    found = probe(model).capabilities
    assert (found.identity, found.widths, found.max_rows) == ("rounding", (), 16)


@pytest.mark.parametrize("n_ctx", [1, 3, 20, 33, 57])
def test_short_contexts_are_probed_in_as_many_places(n_ctx: int) -> None:
    assert widths_of(n_ctx=n_ctx) == EVERY
    if n_ctx > 1:
        # A model that rounds by the text, seldom: only tens of places show it.
        assert widths_of(n_ctx=n_ctx, rows=lambda n_rows, n_past, row: n_rows > 3 and n_past == n_ctx - 2) == (1, 2, 3)


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_few_rows_are_probed_as_far_as_they_go(max_rows: int) -> None:
    found = probe(RoundingModel(max_rows=max_rows)).capabilities
    assert found.widths == EVERY[:max_rows]
    assert found.max_rows == max_rows
    assert found.takes_trees == (max_rows == 3)


def test_prompts_that_leave_other_cells_than_rows_are_reused_in_whole_chunks_only() -> None:
    class Prompted(RoundingModel):
        def prefill(self, tokens: Sequence[int]) -> None:
            for token in tokens:
                self._cache.append(self._cell(self._cache, token, len(tokens) == 1))

    assert probe(RoundingModel()).capabilities.reuse_step == 1
    assert probe(Prompted()).capabilities.reuse_step == 0


@pytest.mark.parametrize("n_ctx", [70, 100, 250, 300, 600])
def test_prompts_are_read_as_long_as_the_context_allows_before_their_cells_count_as_alike(n_ctx: int) -> None:
    class Prompted(RoundingModel):
        def prefill(self, tokens: Sequence[int]) -> None:
            for token in tokens:
                self._cache.append(self._cell(self._cache, token, len(tokens) >= 64))

    assert probe(RoundingModel(n_ctx=n_ctx)).capabilities.reuse_step == 1
    assert probe(Prompted(n_ctx=n_ctx)).capabilities.reuse_step == 0


def test_own_kernels_are_probed_in_fewer_places() -> None:
    counts = []
    for readings in ({}, {"readings": OWN_READINGS}):
        decodes: list[int] = []
        probe(RoundingModel(rows=lambda n_rows, n_past, row, seen=decodes: seen.append(n_rows) or 0), **readings)  # type: ignore[misc, arg-type]
        counts.append(len(decodes))
    assert counts[1] < counts[0] / 3


class ReadingModel(RoundingModel):
    """A model that has more to read for every token that it has not seen."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.seen: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        self.seen += tokens
        super().prefill(tokens)

    def decode(self, tree: Tree) -> Logits:
        self.seen += tree.tokens
        return super().decode(tree)


@pytest.mark.parametrize("n_ctx", [3, 60, 640])
@pytest.mark.parametrize("n_different", [1, 2, 9])
def test_where_each_token_has_weights_of_its_own_read_few_are_tried_and_others_only_timed(
    n_different: int, n_ctx: int
) -> None:
    model = ReadingModel(n_ctx=n_ctx)
    found = probe(model, readings=OWN_READINGS, n_different=n_different)
    assert tuple(found.seconds) == (1, 2, 4)
    tried, timed = set(model.seen[:-7]), set(model.seen[-7:])
    assert len(tried) <= n_different and len(timed) == 7 and not tried & timed
    assert found.capabilities == probe(RoundingModel(n_ctx=n_ctx), readings=OWN_READINGS).capabilities
    assert model.n_past == 0


@pytest.mark.parametrize("n_different", [1, 2, 9])
@pytest.mark.parametrize("widest", [2, 5, 8])
def test_a_text_of_few_tokens_shows_widths_that_differ_as_any_text_does(widest: int, n_different: int) -> None:
    for rows, cells in ((lambda n_rows, n_past, row: n_rows > widest, exact), (exact, lambda n, at, row: n > widest)):
        model = RoundingModel(rows=rows, cells=cells)
        found = probe(model, readings=OWN_READINGS, n_different=n_different)
        assert found.capabilities.widths == tuple(n for n in EVERY if n <= widest)
        assert tuple(found.seconds) == tuple(n for n in (1, 2, 4) if n <= widest)


@pytest.mark.parametrize("values", [{}, {"n_ctx": 20}, {"n_ctx": 640, "max_rows": 1}])
@pytest.mark.parametrize("widest", [1, 3, 16])
def test_progress_is_told_from_nothing_to_all(widest: int, values: dict[str, Any]) -> None:
    told: list[tuple[int, int]] = []
    model = RoundingModel(rows=lambda n_rows, n_past, row: n_rows > widest, **values)
    probe(model, on_probe=lambda done, total: told.append((done, total)))
    total = told[0][1]
    assert told == sorted(told) and {each for _, each in told} == {total}
    assert (told[0], told[-1], told.count((total, total))) == ((0, total), (total, total), 1)


class NumberlessModel(RoundingModel):
    def decode(self, tree: Tree) -> Logits:
        return np.full_like(super().decode(tree), np.nan)

    def hold(self) -> None: ...


@pytest.mark.parametrize("is_exact", [True, False])
def test_rows_without_numbers_say_nothing_of_trees(is_exact: bool, recwarn: pytest.WarningsRecorder) -> None:
    model = NumberlessModel(exact=is_exact)
    assert probe(model).capabilities.takes_trees
    assert not recwarn.list
