"""Laws of transcription: the same weights, whole or not at all, and only what the graph can express."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import N_VOCAB, write_gguf

from edge_spec.engines.llama import LlamaSettings, LlamaWeights, open_llama
from edge_spec.engines.onnx import OnnxSettings, open_onnx
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.transcription import Transcription, plan, read_transcription, transcribe
from edge_spec.errors import BackendError, DiskFull, ModelFileError, UnsupportedModel
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.tree import Tree

MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MIX = dict.fromkeys(MATRICES, "Q4_K") | dict.fromkeys(("attn_v", "ffn_down", "output"), "Q6_K")

GEMMA3: dict[str, Any] = {"architecture": "gemma3", "head_norms": True, "post_norms": True, "tied": True}
LOCAL = {
    "attention.sliding_window": 24,
    "attention.sliding_window_pattern": 2,
    "rope.freq_base": 1e6,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
PHI3: dict[str, Any] = {"architecture": "phi3", "fused": True, "long_factors": 24}
PARTIAL = {"rope.dimension_count": 48, "attention.sliding_window": 16, "rope.scaling.attn_factor": 1.19}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")


def rows_of(model: Any, tokens: list[int]) -> np.ndarray[Any, Any]:
    """Rows after a prefix, eight at a time, ``[len(tokens) - 4, n_vocab]``."""
    model.prefill(tokens[:4])
    rows = []
    for start in range(4, len(tokens), 8):
        part = Tree.sequence(tokens[start : start + 8])
        rows.append(model.decode(part).copy())
        model.keep(range(len(part)))
    return np.concatenate(rows)


def on_llama(path: Path, tokens: list[int], *, flash: bool) -> np.ndarray[Any, Any]:
    weights = LlamaWeights(path)
    settings = LlamaSettings(n_ctx=96, n_threads=1, kv_k="f16", flash_attention=flash)
    model, _ = open_llama(weights, settings, file="x", cache_dir=None)
    rows = rows_of(model, tokens)
    model.close()
    weights.close()
    return rows


def on_onnx(source: Transcription, tokens: list[int], **values: Any) -> np.ndarray[Any, Any]:
    model, _ = open_onnx(source, OnnxSettings(**({"n_ctx": 96, "n_threads": 1} | values)), file="x", cache_dir=None)
    rows = rows_of(model, tokens)
    model.close()
    return rows


def apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


# --- the same weights


@needs_kernels
@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        pytest.param({}, 1.3, id="llama"),
        pytest.param({"tied": True, "rope_factors": True, "kinds": {"token_embd": "Q8_0"}}, 1.3, id="tied, factors"),
        pytest.param({"extra": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}}, 1.3, id="linear rope"),
        pytest.param({"architecture": "qwen2", "biases": True}, 1.3, id="qwen2"),
        pytest.param({"architecture": "qwen3", "head_norms": True}, 1.3, id="qwen3"),
        pytest.param(GEMMA3, 1.3, id="gemma3 without windows"),
        pytest.param({**GEMMA3, "extra": LOCAL}, 1.3, id="gemma3"),
        pytest.param(
            {**GEMMA3, "n_layers": 7, "extra": {"attention.sliding_window": 13}},
            1.3,
            id="gemma3, 7 layers",
        ),
        pytest.param({"architecture": "phi3", "fused": True}, 1.3, id="phi3"),
        pytest.param({**PHI3, "extra": PARTIAL}, 1.3, id="phi3, short"),
        pytest.param(
            {**PHI3, "extra": PARTIAL | {"rope.scaling.original_context_length": 64}},
            1.3,
            id="phi3, long",
        ),
        pytest.param({"architecture": "qwen2", "biases": True, "extra": YARN}, 1.3, id="yarn"),
        pytest.param({"rope_factors": True, "extra": YARN | {"rope.freq_base": 5e5}}, 1.3, id="yarn, factors"),
        pytest.param({"extra": YARN | {"rope.scaling.yarn_beta_fast": 4.0}}, 1.3, id="yarn, unread"),
        pytest.param({"extra": {"rope.scaling.factor": 3.0}}, 1.3, id="factor alone"),
        pytest.param({"extra": {"rope.scaling.attn_factor": 1.2}}, 1.3, id="growing"),
        pytest.param({"kinds": dict.fromkeys(MATRICES, "F16")}, 1.5, id="F16"),
        # llama.cpp rounds activations for these in other groups than it does elsewhere, and than the kernels do.
        pytest.param({"kinds": MIX}, 2.0, id="Q4_K_M"),
        pytest.param({"kinds": dict.fromkeys(MATRICES, "Q5_1")}, 1.3, id="Q5_1"),
    ],
)
def test_logits_are_no_further_from_llama_cpp_than_its_own_with_and_without_flash_attention(
    tmp_path: Path, made: dict[str, Any], allowed: float
) -> None:
    path = write_gguf(tmp_path / "model.gguf", **made)
    tokens = np.random.default_rng(0).integers(3, N_VOCAB, 68).tolist()
    flash, plain = (on_llama(path, tokens, flash=flash) for flash in (True, False))
    ours = on_onnx(transcribe(inspect(path), tmp_path / "cache"), tokens)
    assert apart(ours, flash) <= allowed * apart(flash, plain)


@needs_kernels
def test_a_cache_of_halves_is_no_further_from_that_of_llama_cpp(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", **{**GEMMA3, "extra": LOCAL})
    tokens = np.random.default_rng(0).integers(3, N_VOCAB, 68).tolist()
    flash, plain = (on_llama(path, tokens, flash=flash) for flash in (True, False))
    source = transcribe(inspect(path), tmp_path / "cache")
    ours, exact = (on_onnx(source, tokens, kv_k=kv, kv_v=kv) for kv in ("f16", "f32"))
    assert apart(ours, flash) <= 1.3 * apart(flash, plain)
    assert 0 < apart(ours, exact) <= 1.3 * apart(flash, plain)


@needs_kernels
@pytest.mark.parametrize("role", ["target", "intermediate", "draft"])
def test_the_demo_family_thinks_alike_on_both_engines(tmp_path: Path, role: str) -> None:
    path = getattr(resolve_family("demo"), role)
    weights = LlamaWeights(path, vocab_only=True)
    tokens = weights.tokenize("Once upon a time, there was a little girl named Lily. " * 8, add_special=True)[:92]
    weights.close()
    flash, plain = (on_llama(path, tokens, flash=flash) for flash in (True, False))
    ours = on_onnx(transcribe(inspect(path), tmp_path), tokens)
    assert apart(ours, flash) <= 1.3 * apart(flash, plain)
    best = np.sort(flash, axis=1)
    certain = best[:, -1] - best[:, -2] > 2 * np.abs(ours - flash).max()
    assert certain.mean() > 0.5
    assert np.array_equal(ours.argmax(axis=1)[certain], flash.argmax(axis=1)[certain])


# --- what is refused


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"architecture": "gemma2"}, "gemma2"),
        ({"architecture": "qwen2", "extra": {"rope.scaling.type": "dynamic"}}, "dynamic"),
        ({"architecture": "qwen2", "extra": {"rope.dimension_count": 66}}, "66 of the 64"),
        ({"architecture": "qwen2", "extra": {"rope.freq_base": 1.0}}, "powers of 1.0"),
        ({"architecture": "phi3", "fused": True, "long_factors": 7}, "rope_factors_short"),
        ({"extra": {"expert_count": 8}}, "expert_count"),
        ({"extra": {"rope.scaling.yarn_log_multiplier": 0.1}}, "yarn_log_multiplier"),
        ({**GEMMA3, "extra": {"final_logit_softcapping": 30.0}}, "softcapping"),
        ({**GEMMA3, "extra": {"attention.sliding_window": 8, "attention.sliding_window_pattern": "?"}}, "window"),
        ({"head_norms": True}, "attn_q_norm"),
        ({"architecture": "qwen3"}, "lacks the tensor"),
        ({"kinds": {"ffn_up": "BF16"}}, "BF16"),
        ({"head_dim": 24}, "heads of 24 numbers"),
    ],
)
def test_what_the_graph_cannot_express_is_left_to_llama_cpp(tmp_path: Path, made: dict[str, Any], named: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", **made)
    with pytest.raises(UnsupportedModel, match=named) as caught:
        transcribe(inspect(path), tmp_path / "cache")
    assert "llama" in str(caught.value)
    assert not list((tmp_path / "cache").glob("*"))


# --- the cache


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf")


def test_a_transcription_is_made_once(gguf: Path, tmp_path: Path) -> None:
    made: list[int] = []
    progress: list[tuple[int, int]] = []
    for _ in range(2):
        source = transcribe(
            inspect(gguf),
            tmp_path / "cache",
            on_start=lambda: made.append(1),
            progress=lambda done, total: progress.append((done, total)),
        )
    assert made == [1]
    assert progress == sorted(progress)
    assert progress[-1][0] <= progress[-1][1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [source.folder.name]


def test_another_model_of_the_same_name_is_made_anew(gguf: Path, tmp_path: Path) -> None:
    first = transcribe(inspect(gguf), tmp_path / "cache")
    second = transcribe(inspect(write_gguf(gguf, seed=1)), tmp_path / "cache")
    assert first.folder != second.folder


def test_a_change_that_the_fingerprint_misses_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=dict.fromkeys(MATRICES, "F32"))
    first = transcribe(inspect(path), tmp_path / "cache")
    weights = (first.folder / "weights.bin").read_bytes()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # samples are taken from the middle of a tensor
    path.write_bytes(data)
    second = transcribe(inspect(path), tmp_path / "cache")
    assert second.folder == first.folder
    assert (second.folder / "weights.bin").read_bytes() != weights


def test_a_copy_of_a_model_shares_its_transcription(gguf: Path, tmp_path: Path) -> None:
    made: list[int] = []
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf.read_bytes())
    for path in (gguf, copy, gguf, copy):
        transcribe(inspect(path), tmp_path / "cache", on_start=lambda: made.append(1))
    assert made == [1]


def _delete(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _scribble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [_delete, _shorten, _scribble])
@pytest.mark.parametrize("name", ["weights.bin", "graph", "facts.json", "source.json"])
def test_a_damaged_cache_is_rebuilt(gguf: Path, tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    name = source.graph(f16=False).name if name == "graph" else name
    whole = (source.folder / name).read_bytes()
    harm(source.folder / name)
    assert name == "source.json" or read_transcription(source.folder) is None
    again = transcribe(inspect(gguf), tmp_path / "cache")
    assert again.folder == source.folder
    assert (again.folder / name).read_bytes() == whole
    assert len(list(again.folder.iterdir())) == 5
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [source.folder.name]


def test_a_cache_of_another_version_is_rebuilt(gguf: Path, tmp_path: Path) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    facts = json.loads((source.folder / "facts.json").read_text())
    (source.folder / "facts.json").write_text(json.dumps(facts | {"version": facts["version"] + 1}))
    transcribe(inspect(gguf), tmp_path / "cache")
    assert json.loads((source.folder / "facts.json").read_text()) == facts


@pytest.mark.parametrize("n_bytes", [None, 0, 5000, -1])
def test_missing_and_short_weights_are_a_clear_error(gguf: Path, tmp_path: Path, n_bytes: int | None) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    weights = source.folder / "weights.bin"
    if n_bytes is None:
        weights.unlink()
    else:
        os.truncate(weights, n_bytes if n_bytes >= 0 else weights.stat().st_size + n_bytes)
    with pytest.raises(BackendError, match="ONNX Runtime"):
        open_onnx(source, OnnxSettings(n_ctx=8, n_threads=1), file="x", cache_dir=None)


def test_a_full_disk_is_noticed_before_anything_is_written(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(DiskFull) as caught:
        transcribe(inspect(gguf), tmp_path / "cache")
    assert caught.value.needed_bytes > caught.value.available_bytes == 1 << 20
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, ModelFileError)])
def test_a_failure_while_writing_leaves_nothing(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def fail(done: int, total: int) -> None:
        if done > 300_000:
            raise OSError(code, os.strerror(code))

    with pytest.raises(error):
        transcribe(inspect(gguf), tmp_path / "cache", progress=fail)
    assert not list((tmp_path / "cache").iterdir())


def _aged(path: Path, days: float) -> Path:
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


def test_what_a_killed_process_left_is_swept_away(gguf: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from edge_spec.models import inspect;"
        "from edge_spec.engines.onnx.transcription import transcribe;"
        "transcribe(inspect(sys.argv[1]), Path(sys.argv[2]), progress=lambda *done: os._exit(9))"
    )
    cache = tmp_path / "cache"
    assert subprocess.run([sys.executable, "-c", script, str(gguf), str(cache)]).returncode == 9
    [left] = cache.iterdir()
    assert left.name.startswith(".part-")
    for name, days in ((".part-elsewhere-old", 1.1), (".part-elsewhere-new", 0.9)):
        (cache / name).mkdir()
        _aged(cache / name, days)
    made = transcribe(inspect(gguf), cache).folder
    assert {path.name for path in cache.iterdir()} == {made.name, ".part-elsewhere-new"}


def test_what_nobody_has_used_for_long_goes_when_another_is_written(gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = (transcribe(inspect(write_gguf(gguf, seed=seed)), cache).folder for seed in (1, 2))
    older = first.with_name(first.name[:-1] + "0")
    shutil.copytree(second, older)
    for folder, days in ((first, 61), (second, 59), (older, 2)):
        _aged(folder / "source.json", days)
    third = transcribe(inspect(write_gguf(gguf, seed=3)), cache).folder
    assert set(cache.iterdir()) == {second, third}
    # To be used is to stay.
    _aged(second / "source.json", 61)
    transcribe(inspect(write_gguf(gguf, seed=2)), cache)
    fourth = transcribe(inspect(write_gguf(gguf, seed=4)), cache).folder
    assert set(cache.iterdir()) == {second, third, fourth}


def test_what_is_not_ours_stays_in_the_cache(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    _aged(tmp_path / "notes", 400)
    transcribe(inspect(gguf), tmp_path)
    assert (tmp_path / "notes").exists()


def _transcribe(gguf: Path, folder: Path, barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(str(transcribe(inspect(gguf), folder).folder))


def test_several_processes_at_once_agree(gguf: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    folder = tmp_path / "cache"
    processes = [context.Process(target=_transcribe, args=(gguf, folder, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert len(found) == 1
    assert [str(path) for path in folder.iterdir()] == list(found)
