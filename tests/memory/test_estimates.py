"""Laws of estimates: what is planned for weights, caches and buffers is what engines allocate."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import write_gguf
from hybrid_files import HybridFiles
from split_gguf import split_gguf

from edge_spec.engines.llama.footprint import DryModel, llama_footprint
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.registry import engine as registry_engine
from edge_spec.engines.registry import settings_of
from edge_spec.loading import load, plan
from edge_spec.memory import Footprint
from edge_spec.models import inspect, resolve_family
from edge_spec.models.model_file import kv_cache_bytes

pytestmark = pytest.mark.long

MIB = 1 << 20


HELD = 60 * MIB


DEMO = resolve_family("demo")


@pytest.mark.parametrize("kinds", [{}, {"attn_v": "Q6_K", "token_embd": "Q6_K"}, {"token_embd": "F16"}], ids=str)
@pytest.mark.parametrize(("tied", "repack"), [(False, True), (True, True), (True, False)])
def test_weights_and_caches_are_what_llama_cpp_allocates(
    tmp_path: Path, kinds: dict[str, str], tied: bool, repack: bool
) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=kinds, tied=tied)
    with load(path, speculation="off", repack=repack, n_ctx=300, n_threads=1, cache_dir=None) as model:
        measured = {line.name: line for line in model.ledger if line.owner == "target"}
    # A vocabulary and the rows of logits are not told apart, and buffers have tests of their own.
    told = {name for name, line in measured.items() if line.measured_bytes is not None} - {"compute buffers"}
    weights = {"weights, repacked", "weights, copied"} if repack else {"weights, mapped"}
    assert told == {"KV cache", *weights}
    for name in told:
        assert measured[name].measured_bytes == pytest.approx(measured[name].predicted_bytes, abs=20 << 10), name


@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("head_dim", [48, 64])
def test_every_type_of_cache_is_planned_as_it_is_shown(tmp_path: Path, engine: str, head_dim: int) -> None:
    file, on = inspect(write_gguf(tmp_path / "model.gguf", head_dim=head_dim)), registry_engine(engine)
    asked = settings_of(4096, {"n_threads": 1})
    requested = (asked, replace(asked, kv_k="f16", kv_v="f16"), replace(asked, kv_k="f32", kv_v="f32"))
    alone: list[Footprint] = []
    for settings in requested:
        with on.estimator() as estimates:
            alone.append(estimates.footprint(file, settings, tokenizer=True))
    for order in itertools.permutations(range(len(requested))):
        with on.estimator() as estimates:
            assert all(estimates.footprint(file, requested[n], tokenizer=True) == alone[n] for n in order)
    for settings in requested:
        kinds = {"kv_k": settings.kv_k, "kv_v": settings.kv_v} if settings is not asked else {}
        chosen = plan(
            file.path,
            memory=1 << 40,
            held_bytes=HELD,
            engine=engine,
            n_ctx=4096,
            n_threads=1,
            speculation="off",
            **kinds,
        ).chosen
        footprint = chosen.parts["target"]
        shown = str(chosen.choices.get("kv", "f16/f16")).split("/")
        cells = kv_cache_bytes(file, 4096, *shown)
        # The angles of positions come on top.
        assert cells <= footprint.kv_cache_bytes <= 1.3 * cells


def test_compute_buffers_are_what_llama_cpp_allocates() -> None:
    for trees, chunk in itertools.product((False, True), (64, 512)):
        settings = LlamaSettings(n_ctx=512, trees=trees, prefill_chunk=chunk, kv_k="q8_0", kv_v="f16")
        file = inspect(DEMO.target)
        with DryModel(file) as dry:
            said = dry.compute_bytes(settings)
            assert said is not None
            footprint = llama_footprint(file, settings, dry=dry)
        assert said < footprint.compute_bytes < said + 4 * MIB
        rough = llama_footprint(file, settings)
        assert rough.compute_bytes > 0
        assert replace(rough, compute_bytes=0) == replace(footprint, compute_bytes=0)


def test_caches_are_those_that_llama_cpp_makes() -> None:
    """Some architectures have further caches, or layers that share one, and no field of the header says so."""
    file, settings = inspect(DEMO.target), LlamaSettings(n_ctx=2048)
    right = llama_footprint(file, settings)
    with DryModel(file) as dry:
        for heads in (1, 4):
            wrong = replace(file, n_head_kv=(heads,) * file.n_layers)
            assert llama_footprint(wrong, settings).kv_cache_bytes == heads / 2 * right.kv_cache_bytes
            found = llama_footprint(wrong, settings, dry=dry)
            assert abs(found.kv_cache_bytes - right.kv_cache_bytes) < 8 << 10


OPENS = """
import sys
from pathlib import Path
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.memory import usage
weights = LlamaWeights(Path(sys.argv[1]))
before = usage().anonymous_bytes
settings = LlamaSettings(n_ctx=1024, n_threads=1, max_rows=2, prefill_chunk=int(sys.argv[2]), kv_k="q8_0", kv_v="f16")
model = open_llama(weights, settings, file="x", cache_dir=None)[0]
print(usage().anonymous_bytes - before)
"""


@pytest.mark.parametrize("chunk", [64, 512])
def test_lists_of_operations_that_grow_with_the_chunk_are_counted(hybrids: HybridFiles, chunk: int) -> None:
    """llama.cpp clears 40 places for every token of a chunk, for architectures whose graphs may become long."""
    file = inspect(hybrids["qwen35"])
    settings = LlamaSettings(n_ctx=1024, n_threads=1, max_rows=2, prefill_chunk=chunk, kv_k="q8_0", kv_v="f16")
    with DryModel(file) as dry:
        lines = llama_footprint(file, settings, dry=dry).lines()
    planned = sum(n for name, n in lines.items() if not name.startswith(("weights", "vocabulary")))
    opened = subprocess.run(
        [sys.executable, "-c", OPENS, str(file.path), str(chunk)], check=True, capture_output=True, text=True
    )
    # The heap may have room for some of it, and what Python loads meanwhile is not counted.
    assert planned - 24 * MIB < int(opened.stdout) < planned + 6 * MIB


def test_a_model_in_several_files_is_planned_like_one(tmp_path: Path, probe_cache: Path) -> None:
    whole = inspect(DEMO.target)
    names = split_gguf(DEMO.target, tmp_path, 2)
    split = inspect(names[0])
    assert split.parts == tuple(names)
    assert (split.weight_bytes, split.n_params, split.n_vocab) == (whole.weight_bytes, whole.n_params, whole.n_vocab)
    settings = LlamaSettings(n_ctx=512)
    assert llama_footprint(split, settings) == llama_footprint(whole, settings)
    prompt, seed = "Tell me a story.", 3
    texts = []
    for path in (names[0], DEMO.target):
        with load(path, speculation="off", n_threads=1, cache_dir=probe_cache) as model:
            texts.append(model.generate(prompt, seed=seed, max_tokens=12).read())
    assert texts[0] == texts[1]
