"""Laws of plans with room for several texts: what is planned is what their caches take, and they get it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_files import write_head
from hybrid_files import HybridFiles
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid

import edge_spec
from edge_spec.controller.candidates import TEXT_CACHES
from edge_spec.engines.llama.engine import LlamaEngine
from edge_spec.engines.llama.footprint import repacks_k_quants
from edge_spec.engines.llama.settings import llama_settings
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.generation.prefix_cache import TEXTS
from edge_spec.loading import plan
from edge_spec.memory import usage
from edge_spec.models import inspect, resolve_family
from edge_spec.models.gguf.types import TYPES
from edge_spec.models.model_file import kv_cache_bytes

pytestmark = pytest.mark.long

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")
K_TYPE = TYPES["Q4_K"]
ASKED: dict[str, Any] = {"engine": "onnx", "speculation": "off", "n_ctx": 300}
N_CELLS = 336
"""Of a text: those of the context, and room for drafts."""


@needs_kernels
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_what_is_planned_is_what_the_caches_take(tmp_path: Path, kind: str) -> None:
    asked = ASKED | {"kv_k": kind, "kv_v": kind, "cache_dir": tmp_path}
    planned = plan("demo", texts=5, **asked)
    with edge_spec.load("demo", **asked) as model:
        target = model.followed["target"].model
        assert planned.chosen.tables[TEXT_CACHES] == 4 * N_CELLS * target.pool.cell_bytes
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
        # Those of one text, which the plan names line by line.
        lines = {line.name: line.predicted_bytes for line in model.ledger if line.owner == "target"}
        names = ("recurrent state", "snapshots for drafts", "copies of the state")
        assert target.pool.text_bytes == sum(lines[name] for name in names)
        assert planned.chosen.tables[TEXT_CACHES] == 4 * (N_CELLS * target.pool.cell_bytes + target.pool.text_bytes)


@needs_kernels
@pytest.mark.parametrize("name", ["demo", "lfm2", "qwen35", "a head"])
def test_what_drafters_of_several_texts_take_is_planned_too(hybrids: HybridFiles, tmp_path: Path, name: str) -> None:
    family = resolve_family("demo")
    target, smaller = family.target, {"draft": family.draft, "intermediate": family.intermediate}
    if name == "a head":
        kept = np.arange(0, inspect(target).n_vocab, 4)
        write_head(tmp_path / "head.gguf", inspect(target), kept, (1, 2, 3))
        smaller = {"draft": tmp_path / "head.gguf"}
    elif name != "demo":
        drafter = write_hybrid(tmp_path / "draft.gguf", SMALL_HYBRIDS[name], "Q4_0", seed=1, noise=0.06)
        target, smaller = hybrids[name], {"draft": drafter}
    mode = "hierarchy" if name == "demo" else "sequence"
    asked = ASKED | {"cache_dir": tmp_path, "speculation": mode, **smaller}
    planned = plan(target, texts=5, **asked).chosen.tables[TEXT_CACHES]
    with edge_spec.load(target, **asked) as model:
        pools = [each.model.pool for each in model.followed.values()]
        assert len(pools) == 1 + len(smaller)
        # A head's features count with the cells of its target.
        assert planned == 4 * sum(N_CELLS * pool.cell_bytes + pool.text_bytes for pool in pools)
        model.generate("Once upon a time", n=5, seed=3, raw=True, ignore_eos=True, max_tokens=200).read()
        line = next(line for line in model.ledger if (line.owner, line.name) == TEXTS)
        assert 0 < line.predicted_bytes <= planned


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


@pytest.mark.parametrize("n_texts", [2, 16])
def test_texts_on_llama_cpp_take_what_their_cells_take_and_the_masks_of_a_chunk(n_texts: int) -> None:
    """Not what the fewest cells take that a context can have."""
    file, settings = inspect(resolve_family("demo").target), ModelSettings(n_ctx=1024, prefill_chunk=128)
    own = llama_settings(file, settings)
    planned = LlamaEngine().texts_bytes(file, settings, n_texts) / n_texts
    of_text = kv_cache_bytes(file, 1024, own.kv_k, own.kv_v)
    assert of_text < planned < (of_text + 8 * 1024 * 128) * (1 + own.max_rows / 1024) + 1


def test_no_room_is_planned_for_texts_that_llama_cpp_does_not_hold_together() -> None:
    """Three with K-quants where the library repacks them, one where positions are scaled by the context's length."""
    engine, file = LlamaEngine(), inspect(resolve_family("demo").target)
    settings = ModelSettings(n_ctx=300)
    sizes = [engine.texts_bytes(file, settings, n) for n in (1, 3, 16, 17)]
    assert sizes == [n * sizes[0] for n in (1, 3, 16, 16)]
    k_quants = replace(file, tensors=tuple(replace(each, type=K_TYPE) for each in file.tensors))
    most = 3 if repacks_k_quants(k_quants, llama_settings(k_quants, settings)) else 16
    assert engine.texts_bytes(k_quants, settings, 16) == most * sizes[0]
    plain = replace(settings, extras={"repack": False})
    assert engine.texts_bytes(k_quants, plain, 16) == 16 * sizes[0]
    scaled = replace(file, tensors=(replace(file.tensors[0], name="rope_factors_long.weight"), *file.tensors))
    assert engine.texts_bytes(scaled, settings, 16) == 0


@pytest.mark.parametrize("texts", [0, -1, "two"])
def test_a_number_of_texts_that_is_none_is_refused(texts: Any) -> None:
    with pytest.raises(SettingsError, match="texts"):
        plan("demo", texts=texts)
