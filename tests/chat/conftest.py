"""The demo family, loaded once for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec import TextModel


@pytest.fixture(scope="module")
def load(probe_cache: Path) -> Iterator[Callable[..., TextModel]]:
    opened: dict[Any, TextModel] = {}

    def of(**values: Any) -> TextModel:
        key = tuple(sorted(values.items()))
        if key not in opened:
            values = {"n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache, "engine": "llama"} | values
            opened[key] = edge_spec.load("demo", **values)
        return opened[key]

    yield of
    for model in opened.values():
        model.close()
