"""Laws of published models by strangers, by the real command: no folder ends the process or goes on for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_models import publish
from published_weights import read_weights

from edge_spec.errors import UnsupportedModel
from edge_spec.models import inspect, resolve_family

pytestmark = pytest.mark.long


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Path]:
    def of(style: str, **options: Any) -> Path:
        folder = tmp_path / "model"
        publish(folder, read_weights(resolve_family("demo").draft), style, **options)
        return folder

    return of


def require_told(folder: Path, home: Path, *codes: int) -> None:
    """The real command ends by itself, and says why in a line where it fails."""
    own = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home))
    asked = ["run", str(folder), "-p", "Hello", "--raw", "-n", "2", "--memory", "600MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "edge_spec", *asked], env=os.environ | own, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in codes, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.endswith("...")]
    assert len(lines) == done.returncode and not done.stdout * done.returncode, done.stderr
    assert all(line.startswith("edge-spec: error: ") for line in lines)


def changed(folder: Path, change: Callable[[Any], object]) -> None:
    import onnx

    path = next(folder.rglob("*.onnx"))
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("style", "operator", "name", "value"),
    [
        ("plain", "MatMulNBits", "block_size", 0),
        ("plain", "MatMulNBits", "block_size", 3),
        ("plain", "MatMulNBits", "bits", 0),
        ("plain", "MatMulNBits", "K", -1),
        ("genai", "GroupQueryAttention", "kv_num_heads", 0),
        ("genai", "GroupQueryAttention", "num_heads", 1 << 40),
    ],
)
def test_an_impossible_number_of_an_operator_is_told(
    style: str, operator: str, name: str, value: int, published: Callable[..., Path], tmp_path: Path
) -> None:
    """The library would divide by some of these."""
    folder = published(style, four_bits=style == "plain")

    def change(graph: Any) -> None:
        node = next(node for node in graph.node if node.op_type == operator)
        next(each for each in node.attribute if each.name == name).i = value

    changed(folder, change)
    require_told(folder, tmp_path, 1)


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_a_graph_that_may_never_end_is_refused(operator: str, published: Callable[..., Path]) -> None:
    folder = published("plain")
    changed(folder, lambda graph: setattr(graph.node[3], "op_type", operator))
    with pytest.raises(UnsupportedModel, match=f"has the operator '{operator}', which may never end"):
        inspect(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a*)*b" * 99}, "content": ""}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
        {"truncation": {"max_length": 0, "stride": 9, "strategy": "LongestFirst", "direction": "Right"}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1 << 31}, "merges": [["a", "b"]]}},
        {"model": {"type": "Unigram", "vocab": [], "unk_id": 7}},
        {"decoder": {"type": "Nonsense"}},
    ],
)
def test_a_tokenizer_that_panics_is_told(
    values: dict[str, Any], published: Callable[..., Path], tmp_path: Path
) -> None:
    folder = published("plain")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    # Some are taken: what is odd about them does no harm.
    require_told(folder, tmp_path, *([0, 1] if values.keys() & {"truncation", "normalizer"} else [1]))
