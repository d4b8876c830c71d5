"""Laws of cost curves: every open model is measured in every width and depth that it has, and is left empty."""

from __future__ import annotations

import pytest
from letters import LetterTokenizer

from edge_spec import TextModel
from edge_spec.engines.table import TableModel, random_table
from edge_spec.evaluation.curves import CostOfRows, cost_curves, n_decodes, speed_up_of_chains
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import FixedPolicy

TABLE = random_table(5, order=1, seed=2)


def test_every_width_and_depth_of_every_model_is_measured() -> None:
    target, small = TableModel(TABLE, n_ctx=200, max_rows=8), TableModel(TABLE, n_ctx=60, max_rows=4)
    speculator = Speculator(target, ModelDrafter(small))
    model = TextModel(speculator, lambda: FixedPolicy(3), LetterTokenizer(end=4), mode="sequence")
    reply = model.generate("abc", max_tokens=20, seed=1)
    before = reply.read()
    counted: list[None] = []
    curves = list(cost_curves(model, depths=(100, 10, 5000), rounds=3, on_decode=lambda: counted.append(None)))
    assert [(curve.model, curve.depth) for curve in curves] == [("target", 10), ("target", 100), ("sequence", 10)]
    assert [sorted(curve.milliseconds) for curve in curves] == [[1, 2, 3, 4, 6, 8]] * 2 + [[1, 2, 3, 4]]
    assert all(spent > 0 for curve in curves for spent in curve.milliseconds.values())
    assert len(counted) == n_decodes(model, depths=(100, 10, 5000), rounds=3)
    assert target.n_past == small.n_past == 0
    assert model.generate("abc", max_tokens=20, seed=1).read() == before
    model.close()


def test_the_slope_is_what_a_further_row_takes() -> None:
    curve = CostOfRows(model="target", depth=32, milliseconds={1: 2.0, 4: 3.0, 16: 8.0})
    assert curve.row == pytest.approx((8 - 2) / (2 * 15))
    assert CostOfRows(model="target", depth=32, milliseconds={1: 2.0}).row == 0


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9])
def test_chains_gain_what_their_tokens_save_of_single_decodes(chance: float) -> None:
    draft = CostOfRows(model="sequence", depth=32, milliseconds={1: 0.5})
    flat = CostOfRows(model="target", depth=32, milliseconds={1: 4.0, 8: 4.0})
    # Rows cost nothing: three tokens of the drafter against the single decodes that they save.
    tokens = 1 + chance + chance**2 + chance**3
    assert speed_up_of_chains(flat, draft, 3, chance) == pytest.approx(tokens * 4 / (4 + 3 * 0.5))
    # Each row costs a whole decode: nothing can be gained.
    steep = CostOfRows(model="target", depth=32, milliseconds={1: 4.0, 8: 32.0})
    assert speed_up_of_chains(steep, draft, 3, chance) < 1
