"""Laws of our operator of experts: the right numbers, and the same bits whatever the other rows and the threads are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from expert_worlds import ExpertWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.engines.onnx.kernels import available, features

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

GPT_OSS: dict[str, Any] = {
    "biased": True,
    "of_all": False,
    "normalized": False,
    "limit": 7.0,
    "alpha": 1.702,
    "size": 6.0,
}
WORLDS = {
    "floats": ExpertWorld(),
    "odd sizes": ExpertWorld(n_expert=7, n_used=3, n_embd=37, n_ff=41),
    "Q4_0": ExpertWorld(n_expert=32, n_used=4, kinds=("Q4_0",) * 3),
    "a mix, odd outputs": ExpertWorld(n_embd=96, n_ff=160, kinds=("Q4_0", "Q5_1", "Q8_0")),
    "MXFP4, clamped, biased": ExpertWorld(n_expert=32, n_used=4, kinds=("MXFP4",) * 3, **GPT_OSS),
    "wide enough for jobs": ExpertWorld(n_expert=6, n_used=2, n_embd=512, n_ff=544, kinds=("Q8_0",) * 3),
}
COUNTS = (*range(1, 18), 31, 33, 40)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@st.composite
def float_worlds(draw: st.DrawFn) -> ExpertWorld:
    n_expert = draw(st.integers(1, 20))
    return ExpertWorld(
        n_expert=n_expert,
        n_used=draw(st.integers(1, n_expert)),
        n_embd=draw(st.integers(1, 50)),
        n_ff=draw(st.integers(1, 50)),
        biased=draw(st.booleans()),
        of_all=draw(st.booleans()),
        normalized=draw(st.booleans()),
        limit=draw(st.sampled_from([0.0, 1.5, 7.0])),
        alpha=draw(st.sampled_from([1.0, 1.702])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60)
@given(world=float_worlds(), n=st.integers(1, 20))
def test_it_computes_the_experts_that_a_row_chooses(world: ExpertWorld, n: int) -> None:
    x, scores = world.rows(n)
    exact = world.exact(x, scores)
    assert np.allclose(world.run(world.session(), x, scores), exact, rtol=2e-5, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", WORLDS)
def test_a_row_does_not_depend_on_the_other_rows_or_the_threads(name: str) -> None:
    world = WORLDS[name]
    x, scores = world.rows(700)
    expected = world.run(world.session(), x, scores)
    assert np.isfinite(expected).all() and expected.std() > 0.01
    for n_threads in (1, 2):
        session = world.session(n_threads=n_threads)
        assert same_bits(world.run(session, x, scores), expected)
        for n in COUNTS:
            for start in (0, 5, 600):
                part = slice(start, start + n)
                assert same_bits(world.run(session, x[part], scores[part]), expected[part]), (n_threads, n, start)


@pytest.mark.parametrize("name", WORLDS)
def test_a_row_does_not_depend_on_which_other_rows_choose_its_experts(name: str) -> None:
    world = WORLDS[name]
    x, scores = world.rows(33)
    scores[:] = -9
    scores[:, 3 : 3 + world.n_used] = 1  # all rows on the same
    together = world.run(world.session(n_threads=2), x, scores)
    for n in (1, 2, 16):
        assert same_bits(world.run(world.session(), x[:n], scores[:n]), together[:n])
    others = world.rows(33, seed=5)[1]
    others[7] = scores[7]
    assert same_bits(world.run(world.session(), x, others)[7], together[7])


def test_of_equal_scores_the_lower_numbers_are_chosen() -> None:
    world = replace(WORLDS["Q4_0"], of_all=False)
    x, scores = world.rows(3)
    scores[0] = 0
    scores[1] = np.arange(32) // 8 % 2
    scores[2, [4, 9, 20, 21, 30]] = 9
    assert [world.used(row) for row in scores] == [[0, 1, 2, 3], [8, 9, 10, 11], [4, 9, 20, 21]]
    chosen = world.run(world.session(), x, scores)
    for row, used in enumerate([world.used(row) for row in scores]):
        scores[row] = -50
        scores[row, used] = 1
    assert same_bits(world.run(world.session(), x, scores), chosen)


def test_experts_are_added_in_ascending_order_whatever_their_scores_are() -> None:
    world = ExpertWorld(n_used=4, of_all=False, normalized=False)
    x, scores = world.rows(20)
    scores = np.where(scores >= np.sort(scores)[:, [-4]], np.float32(1), np.float32(-1))  # four equal shares
    alone = world.session(n_used=1)
    total, descending = np.zeros_like(x), np.zeros_like(x)
    for expert in range(8):
        only, back = np.zeros_like(scores), np.zeros_like(scores)
        only[:, expert], back[:, 7 - expert] = 1, 1
        for sums, number, chosen in ((total, expert, only), (descending, 7 - expert, back)):
            added = sums + world.run(alone, x, chosen) / 4
            sums[:] = np.where(scores[:, [number]] > 0, added, sums)
    together = world.run(world.session(), x, scores)
    assert same_bits(together, total)
    assert not same_bits(together, descending)


@pytest.mark.parametrize("variant", features() if available() is None else [])
@pytest.mark.parametrize("name", WORLDS)
def test_all_variants_give_the_bits_of_the_reference(name: str, variant: str) -> None:
    world = WORLDS[name]
    x, scores = world.rows(9)
    expected = world.run(world.session(variant="reference"), x, scores)
    assert same_bits(world.run(world.session(variant=variant), x, scores), expected)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(name: str, poison: float) -> None:
    world = WORLDS[name]
    session = world.session()
    x, scores = world.rows(12)
    expected = world.run(session, x, scores)
    for poisoned in (x, scores):
        poisoned[4, 3] = poison
        found = world.run(session, x, scores)
        assert not np.isfinite(found[4]).any()
        assert (found[4][np.isnan(found[4])].view(np.uint32) == 0x7FC00000).all()
        others = np.arange(12) != 4
        assert same_bits(found[others], expected[others])


def test_large_gates_are_gated_like_others() -> None:
    world = ExpertWorld(n_expert=1, n_used=1, size=100.0)
    x, scores = world.rows(8)
    exact = world.exact(x, scores)
    assert np.allclose(world.run(world.session(), x, scores), exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_expert": 0}, "impossible number"),
        ({"n_used": 0}, "impossible number"),
        ({"n_used": 9}, "impossible number"),
        ({"n_expert": 1 << 31}, "impossible number"),
        ({"n_ff": 0}, "impossible sizes"),
        ({"n_ff": 80}, "another shape"),
        ({"n_expert": 7}, "another shape"),
        ({"n_embd": 65}, "another shape"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, int], named: str) -> None:
    with pytest.raises(Exception, match=named):
        ExpertWorld().session(**changes)


def test_inputs_that_do_not_fit_each_other_are_refused() -> None:
    world = ExpertWorld()
    x, scores = world.rows(4)
    for wrong in ((x[:3], scores), (x[:, :-1], scores), (x, scores[:, :-1])):
        with pytest.raises(Exception, match="do not fit each other"):
            world.run(world.session(), *wrong)
    assert world.run(world.session(), x[:0], scores[:0]).shape == (0, 64)


def test_weights_that_are_mapped_from_no_file_are_never_dropped() -> None:
    """Their pages could not be read again."""
    world = WORLDS["wide enough for jobs"]
    x, scores = world.rows(40)
    expected, session = world.run(world.session(), x, scores), world.session(held=1)
    for n in (40, 1, 40):
        assert same_bits(world.run(session, x[:n], scores[:n]), expected[:n])
