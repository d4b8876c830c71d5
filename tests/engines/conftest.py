"""Published models that tests of engines share: the demo's drafter with every signature that exports have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from lone_text import lone_text
from published_models import publish
from published_signatures import SIGNATURES
from published_weights import Weights, read_weights

import edge_spec
from edge_spec.engines.onnx.opener import open_published
from edge_spec.engines.onnx.published_pool import PublishedPath
from edge_spec.engines.settings import ModelSettings
from edge_spec.models import inspect, resolve_family

DEMO = resolve_family("demo")
assert DEMO.draft is not None
assert DEMO.intermediate is not None

Opener = Callable[..., PublishedPath]


@pytest.fixture(scope="session")
def kept() -> npt.NDArray[np.int64]:
    """So few tokens that a head without any training guesses right now and then."""
    with edge_spec.load(
        "demo", engine="onnx", n_ctx=256, n_threads=1, speculation="off", kv_k="f32", kv_v="f32"
    ) as model:
        replies = [model.generate("Tell me a story.", seed=seed, max_tokens=80) for seed in range(3)]
        written = {token for reply in replies for token in (reply.read(), reply.token_ids)[1]}
    return np.array(sorted(written)[::2], np.int64)


@pytest.fixture(scope="session")
def numbers() -> Weights:
    return read_weights(DEMO.draft)


@pytest.fixture(scope="session")
def published(numbers: Weights, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("published")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            style, kind, rest = SIGNATURES[name]
            publish(root / name, numbers, style, kind, **rest)
        return root / name

    return folder


@pytest.fixture(scope="module")
def open_it(published: Callable[[str], Path], probe_cache: Path) -> Iterator[Opener]:
    """Opens a model, the same one for the same settings, with an empty cache."""
    opened: dict[Any, PublishedPath] = {}

    def open_one(name: str, *, fresh: bool = False, **values: Any) -> PublishedPath:
        key = (name, len(opened) if fresh else -1, tuple(sorted(values.items())))
        if key not in opened:
            given_values = ModelSettings(**({"n_ctx": 300, "n_threads": 1} | values))
            opened[key] = lone_text(open_published(inspect(published(name)), given_values, cache_dir=probe_cache)[0])
        opened[key].resume()
        opened[key].rollback(0)
        return opened[key]

    yield open_one
    for model in opened.values():
        model.close()
