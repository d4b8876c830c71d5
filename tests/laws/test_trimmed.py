"""Laws of trimmed vocabularies: a model that knows some of the tokens draws as if the others were impossible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import Case

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table
from edge_spec.tokens.kept_tokens import KeptTokens


def random_kept(n_vocab: int, seed: int) -> KeptTokens:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, n_vocab + 1))
    return KeptTokens(np.sort(rng.choice(n_vocab, n, replace=False)), n_vocab)


def trimmed_table(kept: KeptTokens, *, seed: int, **values: Any) -> TableModel:
    model = TableModel(random_table(len(kept) + 1, order=1, seed=seed), **values)
    model.pool.trim(kept)
    return model


def scattered(row: np.ndarray[Any, np.dtype[np.float32]], kept: KeptTokens) -> np.ndarray[Any, np.dtype[np.float32]]:
    full = np.full(kept.n_vocab, -np.inf, np.float32)
    full[kept.ids] = row
    return full


@pytest.mark.long
def test_a_draw_from_kept_columns_is_the_draw_from_a_row_where_the_others_are_impossible(
    cases: st.SearchStrategy[Any],
) -> None:
    n_possible: Counter[bool] = Counter()

    @given(case=cases)
    @settings(max_examples=300)
    def draw(case: Case) -> None:
        kept = random_kept(case.n_vocab, case.seed)
        row = np.random.default_rng(case.seed).standard_normal(len(kept)).astype(np.float32) * 2
        for text in (case.prompt, [*case.prompt, int(kept.ids[0])], [*case.prompt, 0, 1, 2]):
            whole, some = (Sampler(case.sampling, case.prompt, grammar=case.grammar()) for _ in range(2))
            some = some.over(kept)
            found, expected = some.guess(row, text, 5), whole.guess(scattered(row, kept), text, 5)
            # A grammar may allow kept tokens only of no weight: what is drawn is among them all the same.
            assert all(token in kept.ids for token, _ in found)
            possible = bool(expected) and bool(np.isfinite(scattered(row, kept)[expected[0][0]]))
            n_possible[possible] += 1
            if possible:
                assert [token for token, _ in found] == [token for token, _ in expected]
                assert np.allclose([chance for _, chance in found], [chance for _, chance in expected])
                assert some.pick(row, text) == found[0][0]

    draw()
    assert n_possible[True] > 600 and n_possible[False] > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_kept", [3, 90, 5000])
def test_large_rows_draw_alike_in_c_and_python(temperature: float, n_kept: int) -> None:
    rng = np.random.default_rng(n_kept)
    for number in range(100):
        kept = KeptTokens(np.sort(rng.choice(9000, n_kept, replace=False)), 9000)
        row = (rng.standard_normal(n_kept) * 4).astype(np.float32)
        asked = SamplerSettings(temperature=temperature, seed=number)
        some, whole = Sampler(asked, [1]).over(kept), Sampler(asked, [1])
        expected = whole.guess(scattered(row, kept), [1, 2], 4)
        assert [x for x, _ in some.guess(row, [1, 2], 4)] == [x for x, _ in expected]
        # C leaves rows to Python that are not contiguous memory.
        assert [x for x, _ in some.guess(np.repeat(row, 2)[::2], [1, 2], 4)] == [x for x, _ in expected]


def test_a_bias_beyond_the_whole_vocabulary_is_refused_and_one_of_a_token_not_kept_is_not() -> None:
    kept = KeptTokens([1, 4], 6)
    row = np.zeros(2, np.float32)
    assert Sampler(SamplerSettings(temperature=0, logit_bias={5: 9.0}), [0]).over(kept).pick(row, [0]) == 1
    assert Sampler(SamplerSettings(temperature=0, logit_bias={4: 9.0}), [0]).over(kept).pick(row, [0]) == 4
    with pytest.raises(SettingsError, match="token 6"):
        Sampler(SamplerSettings(temperature=0, logit_bias={6: 9.0}), [0]).over(kept).pick(row, [0])


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=250)
def test_text_is_identical_with_a_drafter_of_any_trimmed_vocabulary(
    data: st.DataObject, cases: st.SearchStrategy[Any]
) -> None:
    case = data.draw(cases)
    makers: list[Callable[[TextPath, TextPath], Drafter]] = [
        lambda a, b: ModelDrafter(a),
        lambda a, b: ModelDrafter(a, width=3, depth=3),
        lambda a, b: HierarchyDrafter(ModelDrafter(a, width=2, depth=2), b),
    ]
    plain = case.generation(drafts=False)
    plain.read()
    for make in makers:
        models = [
            trimmed_table(random_kept(case.n_vocab, case.seed + n), seed=case.seed + n, n_ctx=case.n_ctx)
            for n in (1, 2)
        ]
        reply = case.generation(drafter=make(models[0], models[1]))
        reply.read()
        assert reply.token_ids == plain.token_ids
        assert reply.finish_reason == plain.finish_reason


def test_a_token_that_is_not_kept_is_fed_as_the_last_one() -> None:
    kept = KeptTokens([0, 2, 3], 5)
    model = TableModel(random_table(4, order=1, seed=0))
    model.pool.trim(kept)
    model.prefill([0, 1, 4, 2])
    assert model.cells == (0, 3, 3, 1)
    rows = model.decode(Tree.sequence([4]))
    assert rows.shape == (1, 3)
    assert np.array_equal(rows[0], random_table(4, order=1, seed=0)[3][:-1])


@pytest.mark.parametrize("ids", [[], [2, 1], [1, 1], [-1, 2], [0, 5]])
def test_lists_that_are_not_valid_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="id"):
        KeptTokens(ids, 5)
