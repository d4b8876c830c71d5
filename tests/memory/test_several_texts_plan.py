"""Laws of plans with room for several texts: what is planned is what their caches take, and they get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hybrid_files import HybridFiles

import edge_spec
from edge_spec.controller.candidates import TEXT_CACHES
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.loading import plan
from edge_spec.memory import usage
from edge_spec.speculation.pool import PooledModel

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")
ASKED: dict[str, Any] = {"engine": "onnx", "speculation": "off", "n_ctx": 300}


@needs_kernels
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_what_is_planned_is_what_the_caches_take(tmp_path: Path, kind: str) -> None:
    asked = ASKED | {"kv_k": kind, "kv_v": kind, "cache_dir": tmp_path}
    planned = plan("demo", texts=5, **asked)
    with edge_spec.load("demo", **asked) as model:
        target = model.followed["target"].model
        assert isinstance(target, PooledModel)
        assert planned.chosen.tables[TEXT_CACHES] == 5 * 304 * target.pool.cell_bytes
    without = plan("demo", **asked)
    assert TEXT_CACHES not in without.chosen.tables
    held = [chosen.held_bytes - chosen.base_bytes for chosen in (planned.chosen, without.chosen)]
    assert held[0] - held[1] == planned.chosen.tables[TEXT_CACHES]


@needs_kernels
@pytest.mark.parametrize("name", ["lfm2", "qwen35"])
def test_states_of_several_texts_are_planned_as_they_are_claimed(
    hybrids: HybridFiles, tmp_path: Path, name: str
) -> None:
    asked = ASKED | {"cache_dir": tmp_path}
    planned = plan(hybrids[name], texts=5, **asked)
    with edge_spec.load(hybrids[name], **asked) as model:
        target = model.followed["target"].model
        assert isinstance(target, PooledModel)
        # Those of one text, which the plan names line by line.
        lines = {line.name: line.predicted_bytes for line in model.ledger if line.owner == "target"}
        names = ("recurrent state", "snapshots for drafts", "copies of the state")
        assert target.pool.text_bytes == sum(lines[name] for name in names)
        assert planned.chosen.tables[TEXT_CACHES] == 5 * (304 * target.pool.cell_bytes + target.pool.text_bytes)


@needs_kernels
def test_texts_that_were_planned_for_are_written_at_once(tmp_path: Path) -> None:
    # What this process holds changes from test to test.
    budget = usage().resident_bytes + (300 << 20)
    with edge_spec.load("demo", texts=5, cache_dir=tmp_path, memory=budget, **ASKED) as model:
        replies = model.generate("Hello", n=5, seed=1, ignore_eos=True)
        next(replies)
        for _ in range(20):
            next(replies)
        assert all(answer.token_ids for answer in replies.answers)
        replies.close()


@needs_kernels
def test_a_budget_without_room_for_them_is_refused(tmp_path: Path) -> None:
    least = plan("demo", texts=16, cache_dir=tmp_path, **ASKED).chosen
    with pytest.raises(BudgetExceeded):
        plan("demo", texts=16, cache_dir=tmp_path, memory=least.needed_bytes // 2, held_bytes=least.base_bytes, **ASKED)


def test_an_engine_that_writes_one_text_at_a_time_needs_no_room() -> None:
    asked = ASKED | {"engine": "llama"}
    assert TEXT_CACHES in plan("demo", texts=5, **asked).chosen.tables
    assert TEXT_CACHES not in plan("demo", texts=5, kv_k="f16", **asked).chosen.tables


@pytest.mark.parametrize("texts", [0, -1, "two"])
def test_a_number_of_texts_that_is_none_is_refused(texts: Any) -> None:
    with pytest.raises(SettingsError, match="texts"):
        plan("demo", texts=texts)
