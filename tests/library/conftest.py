"""A hub with two models, and a catalogue that makes them a pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub
from gguf_files import write_gguf

ENTRY = """
[tiny]
target = { repo = "org/big-GGUF", file = "*-Q4_0.gguf" }
draft = { repo = "org/small-GGUF", file = "*.gguf" }
read = "this test"
tried = true
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_gguf(folder / "target.gguf").read_bytes(),
        "draft": write_gguf(folder / "draft.gguf", n_layers=1).read_bytes(),
    }


@pytest.fixture
def hub(models: dict[str, bytes]) -> Iterator[FakeHub]:
    with fake_hub() as found:
        found.repositories = {
            "org/big-GGUF": {
                "README.md": b"#",
                "big-Q8_0.gguf": b"x",
                "big-Q4_0.gguf": models["target"],
                "mmproj-big-Q4_0.gguf": b"y",
                "sub/big-Q6_K-00001-of-00002.gguf": models["draft"],
                "sub/big-Q6_K-00002-of-00002.gguf": models["target"],
            },
            "org/one-bit-GGUF": {"one-bit-F16.gguf": b"x", "one-bit-Q1_0.gguf": b"y"},
            "org/small-GGUF": {"small-Q4_0.gguf": models["draft"]},
        }
        yield found


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "catalogue.toml"
    path.write_text(ENTRY)
    return path
