"""Laws of our own attention operator: the right numbers, and the same bits in every variant, layout and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_worlds import HEAD_DIM, N_CELLS, N_HEAD, N_HEAD_KV, Array, Pool, World, numbers_of, open_session, worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.engines.onnx.kernels import available

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]


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


@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize(("window", "unseen"), [(0, 1), (0, 18), (7, 3), (37, 20)])
@settings(max_examples=15)
@given(data=st.data())
def test_the_first_places_may_be_seen_by_no_other(data: st.DataObject, window: int, unseen: int, *, f16: bool) -> None:
    world, session = data.draw(worlds(f16=f16)), open_session(f16=f16, window=window, unseen=unseen)
    together = world.run(session)
    assert np.allclose(together, world.exact(window=window, unseen=unseen), atol=2e-3 if f16 else 2e-5)
    assert np.array_equal(world.run(session, calls=[1] * len(world.parents)), together)
    for variant in ("avx512", "avx2", "neon", "reference"):
        try:
            session = open_session(variant, f16=f16, window=window, unseen=unseen)
        except Exception:
            continue  # it does not run here
        assert np.array_equal(world.run(session), together)


def test_it_rotates_pairs_half_a_head_apart_as_well_as_neighbors() -> None:
    for n_rotated in (HEAD_DIM, 32):
        world = World(20, [-1, 0, 1, 1], n_rotated=n_rotated)
        assert np.allclose(world.run(open_session(interleaved=0)), world.exact(interleaved=False), atol=2e-5)


def test_queries_grow_with_their_place() -> None:
    world = World(20, [-1, 0, 1, 1, -1], grows=True)
    together = world.run(open_session(grows=True))
    assert np.allclose(together, world.exact(), atol=2e-5)
    assert np.array_equal(world.run(open_session(grows=True), calls=[2, 1, 2]), together)
    for variant in ("avx512", "avx2", "neon"):
        try:
            session = open_session(variant, grows=True)
        except Exception:
            continue  # it does not run here
        assert np.array_equal(world.run(session), world.run(open_session("reference", grows=True)))
    assert world.scales is not None
    world.scales = world.scales[:-1]
    with pytest.raises(Exception, match="one scale of queries for every place"):
        world.run(open_session(grows=True))


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("window", [0, 7])
def test_sinks_take_a_share_of_each_heads_attention(grows: bool, window: int) -> None:
    sinks = [-3.0, 0.0, 1.5, 4.0, 30.0, -200.0]
    world = World(20, [-1, 0, 1, 1, -1], grows=grows, sinks=sinks)
    together = world.run(open_session(grows=grows, sinks=True, window=window))
    assert np.allclose(together, world.exact(window=window), atol=2e-5)
    calls = world.run(open_session(grows=grows, sinks=True, window=window), calls=[2, 1, 2])
    assert np.array_equal(calls, together)
    for variant in ("avx512", "avx2", "neon", "reference"):
        try:
            session = open_session(variant, grows=grows, sinks=True, window=window)
        except Exception:
            continue  # it does not run here
        assert np.array_equal(world.run(session), together)
    world.sinks = np.full(6, -np.inf, np.float32)
    without = World(20, [-1, 0, 1, 1, -1], grows=grows).run(open_session(grows=grows, window=window))
    assert np.allclose(world.run(open_session(grows=grows, sinks=True, window=window)), without, atol=1e-6)
    world.sinks = world.sinks[:-1]
    with pytest.raises(Exception, match="one sink for every head"):
        world.run(open_session(grows=grows, sinks=True))


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("f16", [False, True])
def test_queries_alone_read_what_another_layer_has_stored(window: int, *, f16: bool) -> None:
    world = World(20, [-1, 0, 1, 1, -1], f16=f16)
    pool, session = Pool(world, 7), open_session(f16=f16, window=window)
    pool.call(session, world.text, [(0, range(-1, 19), 20, range(7))])
    expected = pool.call(session, world.rows, [(20, world.parents, 5, range(7))])
    before = {name: array.copy() for name, array in pool.inputs.items()}
    alone = np.ascontiguousarray(world.rows[:, : N_HEAD * HEAD_DIM])
    assert np.array_equal(pool.call(session, alone, [(20, world.parents, 5, range(7))]), expected)
    for name, array in pool.inputs.items():
        assert array.tobytes() == before[name].tobytes()
    for n_more in (1, 2 * N_HEAD_KV - 1):
        odd = np.ascontiguousarray(world.rows[:, : (N_HEAD + n_more) * HEAD_DIM])
        with pytest.raises(Exception, match="do not fit each other"):
            pool.call(session, odd, [(20, world.parents, 5, range(7))])


def test_a_window_as_long_as_the_text_changes_nothing(session: Any) -> None:
    world = World(30, [-1, 0, 1, 2])
    assert np.array_equal(world.run(open_session(window=34)), world.run(session))
    assert not np.array_equal(world.run(open_session(window=33)), world.run(session))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_16_bit_floats_are_rounded_as_numpy_rounds_them() -> None:
    """Every 16-bit float, the number half-way to the next, and its neighbors on both sides."""
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
        tree = numbers_of([(0, range(-1, 111), 112, range(7))])
        session.run(None, feed | {"tree": np.array(tree, np.int32)})
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


@pytest.mark.parametrize("n_head", [2, 6, 7, 8, 16])
def test_heads_that_share_keys_are_computed_like_one_by_one(n_head: int) -> None:
    """With several threads they are divided among these, unless there are few rows or many."""
    shared, alone = (
        open_session(n_head=n_head, n_head_kv=1, head_dim=512),
        open_session("reference", n_head=1, n_head_kv=1, head_dim=512),
    )
    rng, tiles = np.random.default_rng(n_head), range(N_CELLS // 16)
    angles = np.zeros((N_CELLS, 256), np.float32)
    rows = rng.standard_normal((1, 40, n_head + 2, 512)).astype(np.float32)
    for calls in ([40], [23, 1, 16], [1] * 40):
        both = {
            heads: {
                "keys": np.zeros((1, N_CELLS // 16, 512, 16), np.float32),
                "values": np.zeros((1, N_CELLS, 512), np.float32),
                "cos": angles + 1,
                "sin": angles,
            }
            for heads in range(-1, n_head)
        }
        end = 0
        for n in calls:
            numbers = {"tree": np.array(numbers_of([(end, range(-1, n - 1), n, tiles)]), np.int32)}
            some = rows[:, end : end + n]
            (found,) = shared.run(None, both[-1] | numbers | {"qkv": some.reshape(1, n, -1)})
            for head in range(n_head):
                (expected,) = alone.run(
                    None, both[head] | numbers | {"qkv": some[:, :, [head, -2, -1]].reshape(1, n, -1)}
                )
                assert np.array_equal(found.reshape(n, n_head, 512)[:, head], expected[0])
            end += n


TILES = range(N_CELLS // 16)


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [-1],
        [2, 0, 1, 1, 1, -1, 0],
        [1, 0, 1, 1],
        [1, 0, 1, 1, 2, -1, 0],
        [1, 0, 9, 1, 1, -1, 0],
        [1 << 30, 0, 1, 1, 1, -1, 0],
        [1, 0, 1, 1, (1 << 31) - 1, -1, 0],
        [1, 0, (1 << 31) - 1, 1, 1, -1, 0],
        [1, -1, 1, 1, 1, -1, 0],
        [1, 0, -1, 1, 1, -1, 0],
        [1, 0, 1, -1, 1, -1, 0],
        [1, 0, 1, 1, -1, -1, 0],
        *(
            numbers_of([text])
            for text in (
                (0, [0], 1, TILES),
                (0, [-2], 1, TILES),
                (5, [-1, 1], 1, TILES),
                (5, [-1, 2, 0], 1, TILES),
                (N_CELLS, [-1], 1, TILES),
                (16, [-1], 1, [0]),
                (0, [-1], 1, []),
                (0, [-1], 1, [N_CELLS // 16]),
                (0, [-1], 1, [0, -1]),
                (0, [-1], 2, TILES),
                (0, [-1, -1], 2, TILES),
                (N_CELLS, [-1], 1, [*TILES, 0]),
            )
        ),
        numbers_of([(0, [-1], 1, [0]), (0, [-1], 1, [1])]),
    ],
    ids=str,
)
def test_impossible_texts_are_refused(session: Any, numbers: list[int]) -> None:
    world = World(0, [-1])
    feed = Pool(world, N_CELLS // 16).inputs | {"qkv": world.rows[None], "tree": np.array(numbers, np.int32)}
    with pytest.raises(Exception, match=r"AttendRows: [^\n]*$"):
        session.run(None, feed)


def test_rows_after_those_of_all_texts_are_padding(session: Any) -> None:
    world = World(20, [-1, -1])
    pool = Pool(world, N_CELLS // 16)
    for rows, n in ((world.rows, 1), (world.rows, 2)):
        outs = pool.call(session, rows, [(0, [-1] * n, n, TILES)])
        assert np.array_equal(outs[:n], World(0, [-1, -1]).run(session)[:n]) and not outs[n:].any()
        assert np.isnan(pool.inputs["values"][:, n:]).all()
    assert not pool.call(session, world.rows, []).any()


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
        "tree": np.array(numbers_of([(0, [-1], 1, [0])]), np.int32),
    }
    arrays[name] = arrays[name][..., :-1].copy()
    with pytest.raises(Exception, match="do not fit"):
        session.run(None, arrays)
