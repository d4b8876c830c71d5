"""Model files to try readers on: a tiny GGUF, and published folders made of the demo family's drafter."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from published_models import publish
from published_weights import Weights, read_weights
from tiny_model import write_model

from edge_spec.models import resolve_family

DRAFT = resolve_family("demo").draft
assert DRAFT is not None


@pytest.fixture(scope="session")
def weights_of_draft() -> Weights:
    return read_weights(DRAFT)


@pytest.fixture(scope="session")
def made(weights_of_draft: Weights, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("published")
    publish(root / "plain", weights_of_draft, "plain")
    publish(root / "genai", weights_of_draft, "genai", "float16", four_bits=True)
    return {"plain": root / "plain", "genai": root / "genai"}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(style: str) -> Path:
        return Path(shutil.copytree(made[style], tmp_path / style))

    return copy


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "broken.gguf"
