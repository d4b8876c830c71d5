"""The plans of ``memory_accuracy.py``: models of common shapes, contexts, caches, engines, drafters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shape_files import shape_file

__all__ = ["grid", "named", "prepared"]


def grid() -> Iterator[dict[str, Any]]:
    """Plans: model, kind of weights, context, and arguments of ``load``."""
    for mode in ("off", "ngram", "sequence", "tree", "hierarchy"):
        yield {"model": "demo", "n_ctx": 1024, "speculation": mode}
    yield {"model": "demo", "n_ctx": 512, "speculation": "hierarchy", "kv_k": "f16"}
    yield {"model": "demo", "n_ctx": 512, "speculation": "sequence", "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "off", "repack": False}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "off", "engine": "onnx"}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "sequence", "engine": "onnx"}
    for kind in ("Q4_0", "Q4_K", "Q8_0"):
        yield {"model": "llama-20m", "kind": kind, "n_ctx": 512}
        yield {"model": "llama-0.1b", "kind": kind, "n_ctx": 2048}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 512}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 2048, "kv_k": "f16"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 2048, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 4096, "kv_v": "q8_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 2048}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 2048, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "repack": False}
    yield {"model": "llama-0.1b", "kind": "Q4_K", "n_ctx": 1024, "repack": False}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "prefill_chunk": 128, "max_rows": 8}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "draft": "llama-20m", "speculation": "sequence"}
    yield {"model": "llama-0.1b", "kind": "Q8_0", "n_ctx": 1024, "draft": "llama-20m", "speculation": "tree"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "engine": "onnx"}
    yield {"model": "llama-0.1b", "kind": "Q8_0", "n_ctx": 600, "engine": "onnx"}
    yield {
        "model": "llama-0.1b",
        "kind": "Q4_0",
        "n_ctx": 1024,
        "engine": "onnx",
        "draft": "llama-20m",
        "speculation": "sequence",
    }
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 1024}
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 1024, "repack": False}
    yield {"model": "qwen2-0.5b", "kind": "Q8_0", "n_ctx": 1024, "kv_k": "f16"}
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 600, "engine": "onnx"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 2048}
    yield {"model": "llama-0.5b", "kind": "Q4_K", "n_ctx": 1024, "kv_k": "q8_0", "kv_v": "q8_0"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 600, "engine": "onnx"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 1024, "draft": "llama-0.1b", "speculation": "sequence"}
    yield {
        "model": "llama-0.5b",
        "kind": "Q4_0",
        "n_ctx": 1024,
        "draft": "llama-20m",
        "intermediate": "llama-0.1b",
        "speculation": "hierarchy",
    }
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 600}
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 4096, "fill": 600, "kv_k": "q8_0", "kv_v": "q8_0"}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 600}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 600, "repack": False}
    yield {"model": "llama-1b", "kind": "Q4_K", "n_ctx": 4096, "fill": 600}
    yield {"model": "llama-1b", "kind": "Q8_0", "n_ctx": 600}
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 512}
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 2048, "fill": 300, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield from families()
    yield from large()


def families() -> Iterator[dict[str, Any]]:
    """Plans of models with recurrent layers, experts, and a table that stays in its file."""
    for name in ("lfm2.5-1.2b", "qwen3.5-2b", "gemma4-e2b", "lfm2-8b-a1b"):
        for engine in ("onnx", "llama"):
            plan = {"model": name, "kind": "Q4_0", "n_ctx": 1024, "fill": 700, "engine": engine}
            yield plan | {"speculation": "ngram"}


def large() -> Iterator[dict[str, Any]]:
    """Plans of up to three billion parameters and 16,384 tokens, which take minutes each."""
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 16384, "engine": "onnx", "fill": 16384}
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 16384, "fill": 16384}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 8192, "engine": "onnx", "fill": 8192}
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 8192, "fill": 8192}
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 2048, "engine": "onnx", "fill": 2048}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 4096, "draft": "llama-20m-128k", "speculation": "sequence"}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 16384, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 4096, "fill": 4096, "engine": "onnx"}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 16384, "engine": "onnx", "kv": "f16"}
    yield {"model": "llama-3b", "kind": "Q4_K", "n_ctx": 512, "repack": False}
    yield {
        "model": "llama-3b",
        "kind": "Q4_0",
        "n_ctx": 2048,
        "draft": "llama-20m",
        "intermediate": "llama-0.1b",
        "speculation": "hierarchy",
    }
    yield {
        "model": "llama-3b",
        "kind": "Q4_0",
        "n_ctx": 4096,
        "engine": "onnx",
        "draft": "llama-0.1b",
        "speculation": "sequence",
    }
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 16384, "fill": 16384}
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 16384, "fill": 16384, "engine": "onnx", "kv": "f16"}


def prepared(asked: dict[str, Any], folder: Path, *, long: bool, n_threads: int) -> dict[str, Any]:
    """Arguments of a session; writes the model files that are missing.

    Args:
        long: fill the context and write 2,000 tokens, or 256 with more than half a billion parameters, instead of
            just enough to see every phase.
    """
    asked = dict(asked)
    kind = asked.pop("kind", "Q4_0")
    big = asked["model"].endswith(("1b", "2b", "3b")) and asked["model"] != "llama-0.1b"
    if asked["model"] != "demo":
        for role in ("draft", "intermediate"):
            if role in asked:
                asked[role] = str(shape_file(folder, asked[role], "Q4_0"))
        asked["model"] = str(shape_file(folder, asked["model"], kind))
    if long:
        asked["fill"] = asked["n_ctx"]
    asked.setdefault("new", (256 if big else 2000) if long else (24 if big else 64))
    kv = asked.pop("kv", None)
    if kv:
        asked["kv_k"] = asked["kv_v"] = kv
    asked.setdefault("speculation", "off")
    asked.setdefault("n_threads", n_threads)
    asked.setdefault("prefill_chunk", 512)
    asked.setdefault("max_rows", 16)
    if asked.setdefault("engine", "llama") == "onnx":
        asked["cache_dir"] = str(folder / "cache")
        _transcribe(asked, folder / "cache")
    else:
        asked.setdefault("repack", True)
        asked["cache_dir"] = None
    return asked


def _transcribe(asked: dict[str, Any], cache: Path) -> None:
    """Transcribe beforehand, so that the measured process does not."""
    from edge_spec.engines.onnx.transcription.cache import transcribe
    from edge_spec.models import inspect, resolve_family

    family = resolve_family(asked["model"])
    for path in (family.target, asked.get("draft") or family.draft, asked.get("intermediate")):
        if path:
            transcribe(inspect(path), cache / "onnx")
    for old in (cache / "probes").glob("*.json"):
        old.unlink()


def named(asked: dict[str, Any]) -> str:
    """A short name of a plan."""
    words = [asked["model"], asked.get("kind", "")]
    words += [f"{k}={v}" for k, v in asked.items() if k not in ("model", "kind", "fill", "new")]
    return " ".join(word for word in words if word)
