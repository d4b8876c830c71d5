"""Laws of published ONNX models that cannot be used: each is refused in one sentence."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_json import edit
from published_models import publish
from published_weights import Weights

from edge_spec.errors import (
    EdgeSpecError,
    ModelNotFound,
    NotAModel,
    TruncatedModel,
    UnsupportedModel,
)
from edge_spec.models import inspect, resolve


def _shorten(path: Path, n: int) -> None:
    path.write_bytes(path.read_bytes()[:n])


Break = Callable[[Path], object]


BAD: list[tuple[str, str, Break, type[EdgeSpecError], str]] = [
    (
        "no data",
        "plain",
        lambda f: (f / "onnx/model.onnx_data").unlink(),
        ModelNotFound,
        "model.onnx_data holds weights .* and is missing",
    ),
    ("short data", "plain", lambda f: _shorten(f / "onnx/model.onnx_data", 999), TruncatedModel, "bytes of the w"),
    ("empty graph", "plain", lambda f: _shorten(f / "onnx/model.onnx", 0), NotAModel, "is empty"),
    ("short graph", "plain", lambda f: _shorten(f / "onnx/model.onnx", 5000), TruncatedModel, "ends before"),
    ("other kind", "plain", lambda f: (f / "onnx/model.onnx").write_bytes(b"GGUF" * 9), NotAModel, "not an ONNX"),
    ("a web page", "plain", lambda f: (f / "onnx/model.onnx").write_bytes(b"<!DOCTYPE html>"), NotAModel, "not an"),
    (
        "a pointer",
        "plain",
        lambda f: (f / "onnx/model.onnx").write_bytes(b"version https://git-lfs.github.com/spec"),
        NotAModel,
        "git lfs pull",
    ),
    ("no tokenizer", "plain", lambda f: (f / "tokenizer.json").unlink(), ModelNotFound, "tokenizer.json"),
    ("no tokens", "plain", lambda f: (f / "tokenizer.json").write_text('{"model": 3}'), NotAModel, "no tokens"),
    ("list", "plain", lambda f: (f / "tokenizer.json").write_text("[1]"), NotAModel, "not a JSON object"),
    ("no JSON", "plain", lambda f: (f / "config.json").write_text("{"), NotAModel, "config.json is not readable JSON"),
    ("deep", "plain", lambda f: (f / "config.json").write_text("[" * 99999), NotAModel, "config.json"),
    ("no such graph", "genai", lambda f: (f / "model.onnx").unlink(), ModelNotFound, "genai_config.json names"),
    (
        "outside",
        "genai",
        lambda f: edit(f / "genai_config.json", model={"decoder": {"filename": "../model.onnx"}}),
        ModelNotFound,
        "genai_config.json names",
    ),
    (
        "other names",
        "genai",
        lambda f: edit(
            f / "genai_config.json",
            model={"decoder": {"filename": "model.onnx", "inputs": {"past_key_names": "past.%d.k"}}},
        ),
        UnsupportedModel,
        "past_key_values.0.key|past.0.k",
    ),
]


@pytest.mark.parametrize(("style", "spoil", "error", "says"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_folder_is_one_clear_sentence(
    copied: Callable[[str], Path], style: str, spoil: Break, error: type[EdgeSpecError], says: str
) -> None:
    folder = copied(style)
    spoil(folder)
    with pytest.raises(error, match=says) as raised:
        inspect(folder)
    assert "\n" not in str(raised.value)
    assert raised.value.hint


def test_graphs_of_another_kind_are_refused_by_what_does_not_fit(weights_of_draft: Weights, tmp_path: Path) -> None:
    import onnx

    path = publish(tmp_path, weights_of_draft, "plain", extra_input="pixel_values")
    with pytest.raises(UnsupportedModel, match="needs the input 'pixel_values'"):
        inspect(path)

    def rewritten(change: Callable[[Any], object]) -> Path:
        model = onnx.load(path, load_external_data=False)
        del model.graph.input[3]
        change(model.graph)
        onnx.save(model, path.with_name("other.onnx"))
        return path.with_name("other.onnx")

    def rename(ports: Any, old: str, new: str) -> None:
        for port in ports:
            port.name = port.name.replace(old, new)

    for change, says in (
        (lambda graph: rename(graph.input, "input_ids", "image"), "takes 'image'.* and no input_ids"),
        (lambda graph: rename(graph.input, "past_key_values", "state"), "no keys and values of earlier tokens"),
        (lambda graph: rename(graph.output, "logits", "hidden"), "has no output logits"),
        (lambda graph: rename(graph.output, "present.0", "gone.0"), "has no present.0.key"),
        (lambda graph: setattr(graph.input[-1].type.tensor_type, "elem_type", 16), "as bfloat16 and float32"),
    ):
        with pytest.raises(UnsupportedModel, match=says):
            inspect(rewritten(change))
    assert inspect(rewritten(lambda graph: None)).n_layers == weights_of_draft.n_layers


def test_weights_outside_the_folder_are_refused(weights_of_draft: Weights, tmp_path: Path) -> None:
    import onnx

    path = publish(tmp_path, weights_of_draft, "plain")
    for location in ("../model.onnx_data", "/etc/passwd", "C:\\model.onnx_data", "a\\..\\..\\b", ""):
        model = onnx.load(path, load_external_data=False)
        for constant in model.graph.initializer:
            for entry in constant.external_data:
                if entry.key == "location":
                    entry.value = location
        onnx.save(model, path.with_name("other.onnx"))
        with pytest.raises(UnsupportedModel, match="outside its folder"):
            inspect(path.with_name("other.onnx"))


def test_a_damaged_graph_never_gets_past_an_error_of_ours(copied: Callable[[str], Path]) -> None:
    path = copied("genai") / "model.onnx"
    whole = path.read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 8, 200))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        if rng.random() < 0.3:
            del raw[rng.randrange(len(raw)) :]
        path.write_bytes(raw)
        try:
            inspect(path)
        except EdgeSpecError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 20


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "model.onnx", tmp_path / "a\0.onnx"):
        with pytest.raises(ModelNotFound):
            inspect(path)
        with pytest.raises(ModelNotFound):
            resolve(path)
    with pytest.raises(ModelNotFound, match=r"\.onnx"):
        resolve(tmp_path)
