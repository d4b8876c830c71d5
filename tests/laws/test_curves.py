"""Laws of cost curves: every open model is measured in every width and depth that it has, and is left empty."""

from __future__ import annotations

import pytest
from letters import LetterTokenizer
from table_model import TableModel, random_table

from edge_spec import TextModel
from edge_spec.evaluation.curves import CostOfRows, cost_curves, costs_by_role, n_decodes
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.target import Target

TABLE = random_table(5, order=1, seed=2)


def test_every_width_and_depth_of_every_model_is_measured() -> None:
    target, small = TableModel(TABLE, n_ctx=200, max_rows=8), TableModel(TABLE, n_ctx=60, max_rows=4)
    speculator = Speculator(target, ModelDrafter(small))
    model = TextModel(Target(speculator), lambda: 3, LetterTokenizer(end=4), mode="sequence")
    reply = model.generate("abc", max_tokens=20, seed=1)
    before = reply.read()
    counted: list[None] = []
    curves = list(cost_curves(model, depths=(100, 10, 5000), rounds=3, on_decode=lambda: counted.append(None)))
    assert [(curve.model, curve.depth) for curve in curves] == [("target", 10), ("sequence", 10), ("target", 100)]
    widths = {"target": [1, 2, 3, 4, 6, 8], "sequence": [1, 2, 3, 4]}
    assert all(sorted(curve.milliseconds) == widths[curve.model] for curve in curves)
    assert all(spent > 0 for curve in curves for spent in curve.milliseconds.values())
    assert len(counted) == n_decodes(model, depths=(100, 10, 5000), rounds=3)
    assert target.n_past == small.n_past == 0
    assert model.generate("abc", max_tokens=20, seed=1).read() == before
    model.close()


def test_what_was_measured_before_it_was_stopped_is_told() -> None:
    """Three decodes of each width after two to warm up are enough, and fewer are not."""
    for most, expected in ((4 * 5, ["target"]), (4 * 5 - 1, []), (0, [])):
        target = TableModel(TABLE, n_ctx=100, max_rows=4)
        model = TextModel(Target(Speculator(target, NoDrafter())), lambda: 0, LetterTokenizer(end=4), mode="off")
        done: list[None] = []
        curves = list(
            cost_curves(
                model,
                depths=(10, 50),
                on_decode=lambda done=done: done.append(None),  # type: ignore[misc]
                is_over=lambda done=done, most=most: len(done) >= most,  # type: ignore[misc]
            )
        )
        assert ([curve.model for curve in curves], len(done), target.n_past) == (expected, most, 0)
        assert all(curve.depth == 10 for curve in curves)
        assert len(model.generate("abc", max_tokens=9, seed=1).read()) > 0


def test_costs_are_told_by_role() -> None:
    curves = [
        CostOfRows(model="target", depth=32, milliseconds={1: 4.0, 2: 5.0}),
        CostOfRows(model="hierarchy.target", depth=32, milliseconds={1: 2.0}),
        CostOfRows(model="hierarchy.sequence", depth=32, milliseconds={1: 1.0}),
        CostOfRows(model="target", depth=512, milliseconds={1: 8.0}),
    ]
    assert costs_by_role(curves) == {
        "target": {32: {1: 0.004, 2: 0.005}, 512: {1: 0.008}},
        "intermediate": {32: {1: 0.002}},
        "draft": {32: {1: 0.001}},
    }


def test_the_slope_is_what_a_further_row_takes() -> None:
    curve = CostOfRows(model="target", depth=32, milliseconds={1: 2.0, 4: 3.0, 16: 8.0})
    assert curve.row == pytest.approx((8 - 2) / (2 * 15))
    assert CostOfRows(model="target", depth=32, milliseconds={1: 2.0}).row == 0
