"""Laws of our attention where rows continue several texts in one cache: each has the bits that it has alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_worlds import HEAD_DIM, N_CELLS, N_HEAD_KV, Array, World, open_session
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.engines.onnx.kernels import available

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")


@pytest.fixture(scope="module", params=[(0, False), (7, False), (37, False), (20, True)])
def kind(request: pytest.FixtureRequest) -> tuple[Any, int, bool]:
    """A session with a window, and perhaps a cache of 16-bit floats."""
    window, f16 = request.param
    return open_session(f16=f16, window=window), window, f16


class Texts:
    """Several texts in one cache, each in cells of its own.

    Args:
        worlds: chains; the rows of each follow its text.
    """

    def __init__(self, worlds: list[World]) -> None:
        self.worlds, first = worlds, worlds[0]
        n_cells = N_CELLS * len(worlds)
        self.cache = {
            "keys": np.full((N_HEAD_KV, n_cells // 16, HEAD_DIM, 16), 7, first.kind),
            "values": np.full((N_HEAD_KV, n_cells, HEAD_DIM), np.nan, first.kind),
            "cos": first.cos,
            "sin": first.sin,
        }

    def call(self, session: Any, rows: list[Array], places: list[tuple[int, int]]) -> Array:
        """Outputs of rows, given the number of each one's text and its place there."""
        tree = [-1, *(number for text, place in places for number in (N_CELLS * text, place))]
        feed = self.cache | {"qkv": np.stack(rows)[None], "tree": np.array(tree, np.int32)}
        result: Array = session.run(None, feed)[0][0]
        return result

    def run(self, session: Any, order: list[int], widths: list[int]) -> list[Array]:
        """Outputs of the rows of each text: the prompts first, then rows of the texts in this order, some at once."""
        for text, world in enumerate(self.worlds):
            if world.n_text:
                self.call(session, list(world.text), [(text, place) for place in range(world.n_text)])
        done = [0] * len(self.worlds)
        outs: list[list[Array]] = [[] for _ in self.worlds]
        left, sizes = list(order), iter(widths)
        while left:
            some = [left.pop(0) for _ in range(min(next(sizes, 1), len(left)))]
            places = []
            rows = []
            for text in some:
                rows.append(self.worlds[text].rows[done[text]])
                places.append((text, self.worlds[text].n_text + done[text]))
                done[text] += 1
            for text, out in zip(some, self.call(session, rows, places), strict=True):
                outs[text].append(out)
        return [np.array(rows) for rows in outs]


@st.composite
def several_texts(draw: st.DrawFn, *, f16: bool = False) -> tuple[Texts, list[int], list[int]]:
    """Texts, the order in which their rows come, and how many of them go together."""
    n_rotated = draw(st.sampled_from([HEAD_DIM, 32]))
    worlds = []
    for seed in range(draw(st.integers(1, 5))):
        chain = list(range(-1, draw(st.integers(1, 6)) - 1))
        worlds.append(World(draw(st.integers(0, 90)), chain, seed, n_rotated=n_rotated, f16=f16))
    order = draw(st.permutations([text for text, world in enumerate(worlds) for _ in world.parents]))
    return Texts(worlds), order, draw(st.lists(st.integers(1, 20), max_size=30))


@settings(max_examples=30)
@given(data=st.data())
def test_a_row_among_several_texts_is_computed_as_in_its_text_alone(
    kind: tuple[Any, int, bool], data: st.DataObject
) -> None:
    session, _, f16 = kind
    texts, order, widths = data.draw(several_texts(f16=f16))
    for world, rows in zip(texts.worlds, texts.run(session, order, widths), strict=True):
        assert np.array_equal(world.run(session), rows)


@settings(max_examples=30)
@given(data=st.data())
@pytest.mark.parametrize("variant", ["avx512", "avx2", "neon"])
def test_every_variant_computes_several_texts_as_the_reference_does(variant: str, data: st.DataObject) -> None:
    try:
        fast = open_session(variant, window=20)
    except Exception:
        pytest.skip(f"{variant} does not run here")
    texts, order, widths = data.draw(several_texts())
    reference = texts.run(open_session("reference", window=20), order, widths)
    for expected, rows in zip(reference, texts.run(fast, order, widths), strict=True):
        assert np.array_equal(expected, rows)


@pytest.mark.parametrize(
    "places", [[8, 0], [-16, 0], [0, -1], [0, N_CELLS], [96, 16], [0], [0, 0, 0], [0, 0, 16, 0], []]
)
def test_places_outside_the_cache_are_refused(places: list[int]) -> None:
    texts = Texts([World(0, [-1])])
    feed = texts.cache | {"qkv": texts.worlds[0].rows[None], "tree": np.array([-1, *places], np.int32)}
    with pytest.raises(Exception, match="do not fit"):
        open_session().run(None, feed)
