"""A demo model whose memory gets scarce when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scarce_memory import PLENTY, Change, SimulatedMemory

import edge_spec
from edge_spec import TextModel
from edge_spec.engines.base import OpenedModel
from edge_spec.engines.llama.engine import LlamaOpener
from edge_spec.engines.onnx.engine import OnnxOpener


@pytest.fixture
def load(probe_cache: Path) -> Callable[..., TextModel]:
    def of(decide: Callable[[], int], **values: Any) -> TextModel:
        asked = {"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, "speculation": "hierarchy", **values}
        return edge_spec.load("demo", watch=SimulatedMemory(decide).watch(), **asked)

    return of


@pytest.fixture
def larger_caches(load: Callable[..., TextModel], tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Arguments with which the caches of an engine can become smaller.

    On ONNX Runtime those of a conversation that was saved with caches of f32, as earlier versions did.
    """

    def of(engine: str) -> dict[str, Any]:
        given: dict[str, Any] = {"engine": engine}
        if engine == "onnx":
            given["session"] = tmp_path / "old.chat"
            with load(lambda: PLENTY, speculation="off", kv_k="f32", kv_v="f32", engine=engine) as model:
                model.chat(seed=1).save(given["session"])
        return given

    return of


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Lets a test change what engines open from now on, or refuse it: told the settings, and what would open it."""

    def install(change: Change) -> None:
        for kind in (LlamaOpener, OnnxOpener):

            def opened(self: Any, file: Any, settings: Any, *, before: Any = kind.open, **more: Any) -> OpenedModel:
                return change(settings, lambda: before(self, file, settings, **more))

            monkeypatch.setattr(kind, "open", opened)

    return install


@pytest.fixture
def load_demo(probe_cache: Path) -> Callable[..., TextModel]:
    """Loads the demo family with as much memory as there is."""

    def of(**values: Any) -> TextModel:
        return edge_spec.load("demo", **{"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, **values})

    return of
