"""Laws of our operators of layers with a state: the right numbers, and the same bits however a text is divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_worlds import (
    CAPACITY,
    Array,
    ConvolutionWorld,
    DeltaWorld,
    RecurrentWorld,
    divided,
    run_together,
    same_bits,
)

from edge_spec.engines.onnx.kernels import available, features

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

WORLDS: dict[str, RecurrentWorld] = {
    "convolution": ConvolutionWorld(),
    "one tap, 16 channels": ConvolutionWorld(n_taps=1, n_channels=16),
    "convolution for many jobs": ConvolutionWorld(n_taps=5, n_channels=560),
    "delta net, 2 keys to 4 values": DeltaWorld(),
    "delta net, as many keys as values": DeltaWorld(n_head=3, n_head_k=3, size=16, n_taps=2),
    "delta net for many jobs": DeltaWorld(n_head=4, n_head_k=1, size=128),
}
SMALL = ("convolution", "delta net, 2 keys to 4 values")

each_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)


def part_of(rows: dict[str, Array], first: int, last: int) -> dict[str, Array]:
    return {name: array[first:last] for name, array in rows.items()}


def same_states(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


@each_world
def test_it_computes_the_formulas(world: RecurrentWorld) -> None:
    rows = world.rows(150)
    exact = world.exact(rows)
    found, _ = divided(world, world.session(), rows, [("read", 150)])
    assert np.abs(found - exact).max() <= 2e-5 * np.abs(exact).max()


@pytest.mark.long
@each_world
def test_states_and_rows_do_not_depend_on_how_a_text_is_divided_or_on_threads(world: RecurrentWorld) -> None:
    rows = world.rows(150)
    expected, layer = divided(world, world.session(), rows, [("read", 150)])
    states = layer.settle(rows)
    for n_threads in (1, 2):
        session = world.session(n_threads=n_threads)
        for calls in (
            [("read", 1)] * 150,
            [("decode", 1)] * 150,
            [("read", 67), ("decode", 3), ("read", 80)],
            [("read", 64), ("read", 65), ("decode", 20), ("decode", 1)],
            [("decode", n) for n in range(1, 18)],
        ):
            found, other = divided(world, session, rows, calls)
            assert same_bits(found, expected[: len(found)])
            assert len(found) < 150 or same_states(other.settle(rows), states)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
@given(data=st.data())
@settings(max_examples=60)
def test_dropped_rows_leave_no_trace(name: str, data: st.DataObject) -> None:
    """Drafts are decoded, grown, kept in part, and what was kept is taken back as far as rows are there."""
    world = WORLDS[name]
    session = world.session()
    rows, others = world.rows(90), world.rows(90, seed=1)
    layer, end = world.layer(session), 0
    expected, _ = divided(world, session, rows, [("read", 90)])
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(["read", "decode", "decode", "back", "settle"]))
        if step == "read":
            n = data.draw(st.integers(0, 12))
            n_read = data.draw(st.integers(0, n))
            found = layer.run(part_of(rows, end, end + n), n_read=n_read)
            layer.keep(n - n_read)
            assert same_bits(found, expected[end : end + n])
            end += n
        elif step == "decode":
            n_right, n_wrong = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 5))
            right, wrong = part_of(rows, end, end + n_right), part_of(others, 0, n_wrong)
            draft = {key: np.concatenate([right[key], wrong[key]]) for key in rows}
            cut = data.draw(st.integers(0, n_right + n_wrong))
            found = np.concatenate([layer.run(part_of(draft, 0, cut)), layer.run(part_of(draft, cut, 99))])
            assert same_bits(found[:n_right], expected[end : end + n_right])
            layer.keep(n_right)
            end += n_right
        elif step == "back":
            place = layer.arrays["place"]
            end = data.draw(st.integers(int(place[0]), end))
            layer.n_text = end
        else:
            layer.settle(rows)
    whole, fresh = divided(world, session, part_of(rows, 0, end), [("read", end)])
    assert same_bits(whole, expected[:end])
    assert same_states(layer.settle(rows), fresh.settle(rows))


@each_world
def test_texts_in_one_call_have_the_bits_of_each_alone(world: RecurrentWorld) -> None:
    """Some are read while others are decoded, in any order; rows after all of them are padding."""
    rng = np.random.default_rng(3)
    sessions = [world.session(n_threads=n) for n in (1, 2)]
    alone = sessions[0]
    texts = [world.rows(170, seed=number) for number in range(4)]
    whole = [divided(world, alone, rows, [("read", 170)]) for rows in texts]
    for session in sessions:
        layers, ends = [world.layer(session) for _ in texts], [0] * len(texts)
        while min(ends) < 140:
            some = rng.permutation(len(texts))[: rng.integers(1, len(texts) + 1)].tolist()
            parts, counts = [], []
            for index in some:
                n = min(int(rng.choice([0, 1, 1, 3, 70])), 150 - ends[index])
                n_read = n if n > CAPACITY - 12 else 0
                parts.append((layers[index], part_of(texts[index], ends[index], ends[index] + n), n_read))
                counts.append(n)
            found = run_together(parts, n_padding=int(rng.integers(0, 3)))
            for index, n, (layer, _, n_read), rows in zip(some, counts, parts, found, strict=True):
                assert same_bits(rows, whole[index][0][ends[index] : ends[index] + n])
                layer.keep(n - n_read)
                ends[index] += n
        for layer, rows, end in zip(layers, texts, ends, strict=True):
            _, fresh = divided(world, alone, part_of(rows, 0, end), [("read", end)])
            assert same_states(layer.settle(rows), fresh.settle(rows))


@pytest.mark.parametrize("variant", features() if available() is None else [])
@each_world
def test_all_variants_give_the_bits_of_the_reference(world: RecurrentWorld, variant: str) -> None:
    rows = world.rows(40)
    calls = [("read", 30), ("decode", 7), ("decode", 3)]
    expected, reference = divided(world, world.session(variant="reference"), rows, calls)
    found, layer = divided(world, world.session(variant=variant), rows, calls)
    assert same_bits(found, expected)
    assert same_states(layer.settle(rows), reference.settle(rows))


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_scores_are_no_danger(size: float) -> None:
    world = DeltaWorld()
    rows = world.rows(20)
    rows["scores"] *= np.float32(size)
    rows["z"] *= np.float32(10)
    with np.errstate(over="ignore"):
        clipped = rows | {"scores": np.clip(rows["scores"], -500, 500)}
        exact = world.exact(clipped)
    found, _ = divided(world, world.session(), rows, [("read", 20)])
    assert np.abs(found - exact).max() <= 2e-5 * np.abs(exact).max()


@pytest.mark.parametrize("name", SMALL)
def test_rows_that_a_layer_does_not_keep_are_refused_and_change_nothing(name: str) -> None:
    world = WORLDS[name]
    rows = world.rows(60)
    _, layer = divided(world, world.session(), rows, [("read", 30), ("decode", 5), ("decode", 5)])
    before = {key: array.copy() for key, array in layer.arrays.items()}
    for n_text, n_pending, n_read, n in (
        (34, 0, 0, 1),  # the state has taken in 35
        (41, 0, 0, 1),
        (38, 3, 0, 1),
        (38, -1, 0, 1),
        (38, 1, 1, 1),
        (38, 0, 2, 1),
        (38, 0, 0, CAPACITY + 1),
        (38, 2, 0, CAPACITY - 1),
    ):
        layer.n_text, layer.n_pending = n_text, n_pending
        with pytest.raises(Exception, match="another place"):
            layer.run(part_of(rows, 0, n), n_read=n_read)
        assert all(np.array_equal(layer.arrays[key], before[key], equal_nan=True) for key in before)


@pytest.mark.parametrize("name", SMALL)
def test_inputs_that_do_not_fit_each_other_are_refused(name: str) -> None:
    world = WORLDS[name]
    rows, layer = world.rows(4), world.layer(world.session())
    wrong: list[dict[str, Array]] = [{key: array[:, :-1]} for key, array in rows.items()]
    wrong += [{key: array[..., :-1]} for key, array in world.constants().items()]
    run = np.array([1, CAPACITY, layer.layers.shape[1], *layer.numbers(4, 0)], np.int64)
    wrong += [{"run": run[:-1]}, {"run": run[:2]}, {"run": np.append(run, 0)}]
    wrong += [{"run": run + np.eye(len(run), dtype=np.int64)[place] * by} for place in (0, 1, 2) for by in (-1, 1)]
    wrong += [{"run": run - 2 * np.eye(len(run), dtype=np.int64)[0] * run}]
    wrong += [{"run": run + np.eye(len(run), dtype=np.int64)[-2]}]
    for change in wrong:
        given: dict[str, Any] = {key: array[None] for key, array in rows.items()}
        given |= {**world.constants(), "run": run}
        given |= {key: array[None] if key in rows else np.ascontiguousarray(array) for key, array in change.items()}
        with pytest.raises(Exception, match="do not fit"):
            world.session().run(None, given)


@pytest.mark.parametrize("n_head_k", [0, -1, 1 << 31])
def test_impossible_heads_are_refused(n_head_k: int) -> None:
    with pytest.raises(Exception, match="impossible number of heads"):
        DeltaWorld().session(n_head_k=n_head_k)
