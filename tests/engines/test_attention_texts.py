"""Laws of our attention where a call has rows of several texts: each has the bits that it has alone, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_worlds import HEAD_DIM, Array, Pool, World, open_session
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.engines.onnx.kernels import available

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

N_TILES = 48


@pytest.fixture(scope="module", params=[(0, False), (7, False), (37, False), (20, True)])
def kind(request: pytest.FixtureRequest) -> tuple[Any, int, bool]:
    """A session with a window, and perhaps a cache of 16-bit floats."""
    window, f16 = request.param
    return open_session(f16=f16, window=window), window, f16


class Texts:
    """Several texts in one pool.

    Args:
        worlds: their texts and trees.
        tiles: of each.
        shared: how many of its first tiles each has in common with the one before.
    """

    def __init__(self, worlds: list[World], tiles: list[list[int]], shared: list[int]) -> None:
        self.worlds, self.tiles, self.shared = worlds, tiles, shared
        self.pool = Pool(worlds[0], N_TILES)

    def run(self, session: Any, order: list[int], widths: list[int]) -> list[Array]:
        """Outputs of the rows of each text: the texts first, then rows in this order, some at once."""
        for world, tiles, shared in zip(self.worlds, self.tiles, self.shared, strict=True):
            first, end = 16 * shared, world.n_text
            if first < end:
                parents = range(-1, end - first - 1)
                self.pool.call(session, world.text[first:], [(first, parents, end - first, tiles)])
        done = [0] * len(self.worlds)
        outs: list[list[Array]] = [[] for _ in self.worlds]
        left, sizes = list(order), iter(widths)
        while left:
            n = min(next(sizes, 1), len(left))
            some, left = sorted(left[:n]), left[n:]
            rows, texts = [], []
            for text in dict.fromkeys(some):
                world, end = self.worlds[text], done[text] + some.count(text)
                rows += list(world.rows[done[text] : end])
                texts.append((world.n_text, world.parents[:end], end - done[text], self.tiles[text]))
                done[text] = end
            for text, out in zip(some, self.pool.call(session, np.array(rows), texts), strict=True):
                outs[text].append(out)
        return [np.array(rows) for rows in outs]


@st.composite
def several_texts(draw: st.DrawFn, *, f16: bool = False) -> tuple[Texts, list[int], list[int]]:
    """Texts, the order in which their rows come, and how many of them go together."""
    n_rotated = draw(st.sampled_from([HEAD_DIM, 32]))
    worlds: list[World] = []
    tiles: list[list[int]] = []
    shared: list[int] = []
    free = draw(st.permutations(range(N_TILES)))
    for seed in range(draw(st.integers(1, 5))):
        n, chain = draw(st.integers(1, 8)), draw(st.booleans())
        parents = [node - 1 if chain else draw(st.integers(-1, node - 1)) for node in range(n)]
        worlds.append(world := World(draw(st.integers(0, 90)), parents, seed, n_rotated=n_rotated, f16=f16))
        most = min(world.n_text, worlds[-2].n_text) // 16 if seed else 0
        shared.append(draw(st.integers(0, most)))
        own = -(-(world.n_text + n) // 16) - shared[-1]
        tiles.append([*(tiles[-1][: shared[-1]] if seed else []), *free[:own]])
        free = free[own:]
        if seed:
            world.text[: 16 * shared[-1]] = worlds[-2].text[: 16 * shared[-1]]
    order = draw(st.permutations([text for text, world in enumerate(worlds) for _ in world.parents]))
    return Texts(worlds, tiles, shared), order, draw(st.lists(st.integers(1, 20), max_size=30))


@settings(max_examples=60)
@given(data=st.data())
def test_a_row_among_texts_in_scattered_tiles_is_computed_as_in_a_contiguous_text_alone(
    kind: tuple[Any, int, bool], data: st.DataObject
) -> None:
    session, _, f16 = kind
    texts, order, widths = data.draw(several_texts(f16=f16))
    for world, rows in zip(texts.worlds, texts.run(session, order, widths), strict=True):
        assert np.array_equal(world.run(session), rows)


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize("variant", ["avx512", "avx2", "neon"])
def test_every_variant_computes_several_texts_as_the_reference_does(
    variant: str, f16: bool, data: st.DataObject
) -> None:
    try:
        fast = open_session(variant, window=20, f16=f16)
    except Exception:
        pytest.skip(f"{variant} does not run here")
    texts, order, widths = data.draw(several_texts(f16=f16))
    reference = texts.run(open_session("reference", window=20, f16=f16), order, widths)
    for expected, rows in zip(reference, texts.run(fast, order, widths), strict=True):
        assert np.array_equal(expected, rows)


def test_bits_tell_in_which_order_a_text_is_summed() -> None:
    """What is compared above would show a sum that is taken in another order: two tiles that change places do."""
    session, n = open_session(), 96
    outs = []
    for order in ([3, 1, 4, 0, 5, 2, 6], [3, 4, 1, 0, 5, 2, 6]):
        world = World(n, [-1])
        # The same keys and values without places: only the order differs.
        world.cos[:], world.sin[:] = 1, 0
        texts = Texts([world], [[3, 1, 4, 0, 5, 2, 6]], [0])
        texts.pool.call(session, world.text, [(0, range(-1, n - 1), n, texts.tiles[0])])
        outs.append(texts.pool.call(session, world.rows, [(n, [-1], 1, order)]))
    assert np.allclose(*outs, atol=1e-5)
    assert not np.array_equal(*outs)
