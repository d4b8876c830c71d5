"""Laws of our own attention operator: the right numbers, and the same bits in every variant, layout and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.transcription.proto import FLOAT, FLOAT16, INT32, Graph

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

Array = npt.NDArray[Any]
N_HEAD, N_HEAD_KV, HEAD_DIM, N_CELLS = 6, 2, 48, 112
WIDTH = (N_HEAD + 2 * N_HEAD_KV) * HEAD_DIM


def open_session(variant: str = "", *, f16: bool = False, **changes: int) -> Any:
    import onnxruntime

    from edge_spec.engines.onnx.kernels import library_path

    graph = Graph()
    facts = {"n_head": N_HEAD, "n_head_kv": N_HEAD_KV, "head_dim": HEAD_DIM, "interleaved": 1} | changes
    inputs = ["qkv", "keys", "values", "cos", "sin", "tree"]
    for name, rank in zip(inputs, (3, 4, 3, 2, 2, 1), strict=True):
        kind = INT32 if name == "tree" else FLOAT16 if f16 and name in ("keys", "values") else FLOAT
        graph.takes(name, kind, [f"{name}{axis}" for axis in range(rank)])
    graph.gives("y", FLOAT, ["b", "s", "w"])
    graph.node("AttendRows", inputs, ["y"], "edge_spec", variant=variant, **facts)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(graph.serialize(), options, providers=["CPUExecutionProvider"])


class World:
    """A cache with a text in it, and rows of a tree after it.

    Args:
        n_rotated: numbers of a head that are rotated by position.
        f16: whether the cache holds 16-bit floats.
    """

    def __init__(
        self, n_text: int, parents: list[int], seed: int = 0, *, n_rotated: int = HEAD_DIM, f16: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        self.n_text, self.parents, self.n_rotated = n_text, parents, n_rotated
        self.kind = np.float16 if f16 else np.float32
        self.rows = rng.standard_normal((len(parents), WIDTH)).astype(np.float32)
        self.text = rng.standard_normal((n_text, WIDTH)).astype(np.float32)
        angles = np.arange(N_CELLS)[:, None] * 0.3 ** np.arange(n_rotated // 2)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def run(self, session: Any, *, calls: list[int] | None = None) -> Array:
        """Outputs of the rows, ``[rows, n_head * head_dim]``, decoded in so many calls of these sizes."""
        # What is in cells that no row sees must not matter.
        keys = np.full((N_HEAD_KV, N_CELLS // 16, HEAD_DIM, 16), 7, self.kind)
        values = np.full((N_HEAD_KV, N_CELLS, HEAD_DIM), np.nan, self.kind)
        cache = {"keys": keys, "values": values, "cos": self.cos, "sin": self.sin}

        def call(rows: Array, tree: list[int]) -> Array:
            result: Array = session.run(None, cache | {"qkv": rows[None], "tree": np.array(tree, np.int32)})[0][0]
            return result

        if self.n_text:
            call(self.text, [0, *range(-1, self.n_text - 1)])
        outs, end = [], 0
        for n in calls or [len(self.parents)]:
            outs.append(call(self.rows[end : end + n], [self.n_text, *self.parents[: end + n]]))
            end += n
        return np.concatenate(outs)

    def exact(self, *, interleaved: bool = True, window: int = 0) -> Array:
        """The same in float64, by the formula."""
        out = np.zeros((len(self.parents), N_HEAD, HEAD_DIM))
        for row in range(len(self.parents)):
            path = [row]
            while self.parents[path[0]] >= 0:
                path.insert(0, self.parents[path[0]])
            seen = np.concatenate([self.text, self.rows[path]]).astype(np.float64)
            seen = seen.reshape(len(seen), -1, HEAD_DIM)
            q, k, v = np.split(seen, [N_HEAD, N_HEAD + N_HEAD_KV], axis=1)
            q, k = self._rotated(q, interleaved)[-1], self._rotated(k, interleaved)
            k, v = (x[-window:].astype(self.kind).astype(np.float64) for x in (k, v))
            for head in range(N_HEAD):
                kv = head // (N_HEAD // N_HEAD_KV)
                scores = k[:, kv] @ q[head] / np.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v[:, kv] / weights.sum()
        return out.reshape(len(self.parents), -1)

    def _rotated(self, whole: Array, interleaved: bool) -> Array:
        x, rest = whole[..., : self.n_rotated], whole[..., self.n_rotated :]
        cos, sin = (each[: len(x), None].astype(np.float64) for each in (self.cos, self.sin))
        halves = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
        rotated = np.stack([halves[0] * cos - halves[1] * sin, halves[0] * sin + halves[1] * cos], axis=-1)
        rotated = (
            rotated.reshape(x.shape) if interleaved else np.concatenate([rotated[..., 0], rotated[..., 1]], axis=-1)
        )
        return np.concatenate([rotated, rest], axis=-1)


@st.composite
def worlds(draw: st.DrawFn, *, f16: bool = False) -> World:
    n = draw(st.integers(1, 20))
    chain = draw(st.booleans())
    parents = [node - 1 if chain else draw(st.integers(-1, node - 1)) for node in range(n)]
    n_rotated = draw(st.sampled_from([HEAD_DIM, HEAD_DIM, 32, 2]))
    return World(draw(st.integers(0, 90)), parents, draw(st.integers(0, 99)), n_rotated=n_rotated, f16=f16)


@pytest.fixture(scope="module")
def session() -> Any:
    return open_session()


@pytest.fixture(
    scope="module",
    params=[(0, False), (1, False), (7, False), (37, False), (0, True), (20, True)],
    ids=["all", "itself", "7", "37", "f16", "f16, 20"],
)
def kind(request: pytest.FixtureRequest) -> tuple[Any, int, bool]:
    """A session with a window, and perhaps a cache of 16-bit floats."""
    window, f16 = request.param
    return open_session(f16=f16, window=window), window, f16


@settings(max_examples=30)
@given(data=st.data())
def test_it_computes_attention(kind: tuple[Any, int, bool], data: st.DataObject) -> None:
    session, window, f16 = kind
    world = data.draw(worlds(f16=f16))
    # A number half-way between two 16-bit floats can be rounded either way by the last bit of a rotation.
    assert np.allclose(world.run(session), world.exact(window=window), atol=2e-3 if f16 else 2e-5)


def test_it_rotates_pairs_half_a_head_apart_as_well_as_neighbours() -> None:
    for n_rotated in (HEAD_DIM, 32):
        world = World(20, [-1, 0, 1, 1], n_rotated=n_rotated)
        assert np.allclose(world.run(open_session(interleaved=0)), world.exact(interleaved=False), atol=2e-5)


def test_a_window_as_long_as_the_text_changes_nothing(session: Any) -> None:
    world = World(30, [-1, 0, 1, 2])
    assert np.array_equal(world.run(open_session(window=34)), world.run(session))
    assert not np.array_equal(world.run(open_session(window=33)), world.run(session))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_16_bit_floats_are_rounded_as_numpy_rounds_them() -> None:
    """Every 16-bit float, the number half-way to the next, and its neighbours on both sides."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = halves[np.isfinite(halves)].astype(np.float32)
    following = np.nextafter(numbers.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    middles = np.where(np.isfinite(following), (numbers + following) / 2, np.float32(65520))
    values = np.concatenate([numbers, middles, *(np.nextafter(middles, np.float32(side)) for side in (-1e9, 1e9))])
    values = np.resize(values, (-(-len(values) // (32 * 16 * 112)), 112, 1, 16 * 32))
    session = open_session(f16=True, n_head=1, n_head_kv=1, head_dim=512)
    stored = np.zeros((1, 112, 512), np.float16)
    angles = np.zeros((112, 1), np.float32)
    for some in values:
        qkv = np.concatenate([np.zeros((112, 1024), np.float32), some[:, 0]], axis=1)[None]
        feed = {
            "qkv": qkv,
            "keys": np.zeros((1, 7, 512, 16), np.float16),
            "values": stored,
            "cos": angles,
            "sin": angles,
        }
        session.run(None, feed | {"tree": np.array([0, *range(-1, 111)], np.int32)})
        assert np.array_equal(stored[0].view(np.uint16), some[:, 0].astype(np.float16).view(np.uint16))


@settings(max_examples=30)
@given(data=st.data())
def test_a_row_does_not_depend_on_the_other_rows(kind: tuple[Any, int, bool], data: st.DataObject) -> None:
    session, _, f16 = kind
    world = data.draw(worlds(f16=f16))
    together = world.run(session)
    calls, left = [], len(world.parents)
    while left:
        calls.append(data.draw(st.integers(1, left)))
        left -= calls[-1]
    assert np.array_equal(world.run(session, calls=calls), together)


@settings(max_examples=30)
@given(data=st.data())
def test_a_branch_is_computed_like_a_sequence(kind: tuple[Any, int, bool], data: st.DataObject) -> None:
    session, _, f16 = kind
    world = data.draw(worlds(f16=f16))
    path = [data.draw(st.integers(0, len(world.parents) - 1))]
    while world.parents[path[0]] >= 0:
        path.insert(0, world.parents[path[0]])
    together = world.run(session)[path]
    world.rows, world.parents = world.rows[path], list(range(-1, len(path) - 1))
    assert np.array_equal(world.run(session), together)


@pytest.mark.parametrize(("window", "f16"), [(0, False), (20, False), (0, True), (20, True)])
@pytest.mark.parametrize("variant", ["avx512", "avx2", "neon"])
def test_every_variant_computes_the_bits_of_the_reference(variant: str, window: int, f16: bool) -> None:
    try:
        fast = open_session(variant, window=window, f16=f16)
    except Exception:
        pytest.skip(f"{variant} does not run here")
    reference = open_session("reference", window=window, f16=f16)
    rng = np.random.default_rng(0)
    for seed in range(30):
        n = int(rng.integers(1, 20))
        chain = seed % 2 == 0
        parents = [node - 1 if chain else int(rng.integers(-1, node)) for node in range(n)]
        world = World(int(rng.integers(0, 90)), parents, seed, f16=f16, n_rotated=HEAD_DIM - 16 * (seed % 3 == 2))
        world.rows *= np.float32(10.0 ** rng.integers(-3, 3))
        assert np.array_equal(world.run(fast), world.run(reference))


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
def test_places_outside_the_cache_are_refused(session: Any, places: list[int]) -> None:
    texts = Texts([World(0, [-1])])
    feed = texts.cache | {"qkv": texts.worlds[0].rows[None], "tree": np.array([-1, *places], np.int32)}
    with pytest.raises(Exception, match="do not fit"):
        session.run(None, feed)


@pytest.mark.parametrize(
    ("n_text", "parents"), [(0, [0]), (0, [-2]), (5, [-1, 1]), (N_CELLS, [-1]), (-1, [-1]), (0, [])]
)
def test_impossible_trees_are_refused(session: Any, n_text: int, parents: list[int]) -> None:
    world = World(0, [-1] * max(len(parents), 1))
    world.parents = parents
    world.n_text = 0
    with pytest.raises(Exception, match="AttendRows"):
        session.run(
            None,
            {
                "qkv": world.rows[None],
                "keys": np.zeros((N_HEAD_KV, N_CELLS // 16, HEAD_DIM, 16), np.float32),
                "values": np.zeros((N_HEAD_KV, N_CELLS, HEAD_DIM), np.float32),
                "cos": world.cos,
                "sin": world.sin,
                "tree": np.array([n_text, *parents], np.int32),
            },
        )


@pytest.mark.parametrize("changes", [{"head_dim": 40}, {"n_head": 5}, {"n_head_kv": 0}, {"head_dim": 1024}])
def test_impossible_heads_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(Exception, match="impossible heads"):
        open_session(**changes)


def test_impossible_windows_are_refused() -> None:
    with pytest.raises(Exception, match="impossible window"):
        open_session(window=-1)


@pytest.mark.parametrize("name", ["keys", "values", "cos", "sin", "qkv"])
def test_arrays_that_do_not_fit_are_refused(session: Any, name: str) -> None:
    world = World(0, [-1])
    arrays: dict[str, Array] = {
        "qkv": world.rows[None],
        "keys": np.zeros((N_HEAD_KV, N_CELLS // 16, HEAD_DIM, 16), np.float32),
        "values": np.zeros((N_HEAD_KV, N_CELLS, HEAD_DIM), np.float32),
        "cos": world.cos,
        "sin": world.sin,
        "tree": np.array([0, -1], np.int32),
    }
    arrays[name] = arrays[name][..., :-1].copy()
    with pytest.raises(Exception, match="do not fit"):
        session.run(None, arrays)
