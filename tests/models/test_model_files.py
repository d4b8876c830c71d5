"""Laws of model files: what is read of a header is right, and nothing heavy is loaded for it."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter
from tiny_model import write_model

from edge_spec.models import GGUFArray, inspect, read_header, resolve_family

DEMO = resolve_family("demo")


DEMO_FILES = [path for path in (DEMO.target, DEMO.intermediate, DEMO.draft) if path is not None]


@pytest.mark.long
@pytest.mark.parametrize("path", DEMO_FILES, ids=lambda path: path.stem)
def test_header_agrees_with_the_reference_reader(path: Path) -> None:
    ours, theirs = read_header(path), GGUFReader(path)
    assert ours.data_offset == theirs.data_offset
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert list(mine.shape) == other.shape.tolist()
        assert mine.type_name == other.tensor_type.name
        assert (mine.n_bytes, mine.n_elements) == (other.n_bytes, other.n_elements)
        assert (mine.path, mine.offset) == (path, other.data_offset)
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in keys:
        value = ours.metadata[key]
        found = list(value.decode()) if isinstance(value, GGUFArray) else value
        assert found == theirs.fields[key].contents()


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "uint8": 255,
        "int8": -128,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "float32": 0.5,
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float64": 1e300,
        "bool": True,
        "string": "süß",
    }

    def change(writer: GGUFWriter) -> None:
        for kind, value in values.items():
            getattr(writer, f"add_{kind}")(f"of.{kind}", value)
        writer.add_array("of.array", [1.5, -2.5])
        writer.add_array("of.texts", ["", "a", "ß"])

    metadata = read_header(write_model(tmp_path / "values.gguf", change)).metadata
    for kind, value in values.items():
        assert metadata[f"of.{kind}"] == value
        assert type(metadata[f"of.{kind}"]) is type(value)
    numbers, texts = metadata["of.array"], metadata["of.texts"]
    assert isinstance(numbers, GGUFArray)
    assert numbers.decode() == (1.5, -2.5)
    assert isinstance(texts, GGUFArray)
    assert texts.decode() == ("", "a", "ß")
    assert texts.n_bytes == len(texts.raw()) == 3 * 8 + 3


def test_large_vocabularies_are_stepped_over_quickly_and_not_decoded(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(40_000)]
    path = write_model(tmp_path / "large.gguf", lambda writer: writer.add_array("words", words))
    read_header(path)
    tracemalloc.start()
    header = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * header.data_offset + 100_000
    array = header.metadata["words"]
    assert isinstance(array, GGUFArray)
    assert list(array.decode()) == words


def test_version_2_reads_like_version_3(tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path = tmp_path / "v2.gguf"
    path.write_bytes(data)
    assert read_header(path).version == 2
    assert read_header(path).tensors == read_header(tiny).tensors


def test_inspect_tells_what_planning_needs() -> None:
    model = inspect(DEMO.target)
    assert model.architecture == "llama"
    assert model.n_head_kv == (model.n_head_kv[0],) * model.n_layers
    assert model.head_dim_k == model.head_dim_v == model.n_embd // model.n_head
    assert model.weight_bytes == sum(model.tensor_types.values()) < DEMO.target.stat().st_size
    assert model.n_vocab == model.vocabulary.n_tokens > 0
    assert model.chat_template is not None
    assert [inspect(path).quantization for path in DEMO_FILES] == ["Q4_0"] * len(DEMO_FILES)


def test_heads_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_key_length(24)
        writer.add_value_length(40)
        writer.add_sliding_window(32)

    model = inspect(write_model(tmp_path / "uneven.gguf", change, n_head_kv=[4, 0]))
    assert model.n_head_kv == (4, 0)
    assert (model.head_dim_k, model.head_dim_v, model.sliding_window) == (24, 40, 32)
    assert (model.n_params, model.quantization) == (48 * 64 + 2 * (64 * 64 + 64), "F16")


def test_fingerprint_depends_on_content_and_not_on_the_name(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another name.gguf"
    copy.write_bytes(tiny.read_bytes())
    assert inspect(copy).fingerprint == inspect(tiny).fingerprint
    header = read_header(tiny)
    for tensor in header.tensors:
        data = bytearray(tiny.read_bytes())
        data[tensor.offset : tensor.offset + tensor.n_bytes] = bytes(tensor.n_bytes)
        copy.write_bytes(data)
        assert inspect(copy).fingerprint != inspect(tiny).fingerprint, tensor.name


def test_importing_brings_no_heavy_library() -> None:
    code = (
        "import sys, edge_spec.models, edge_spec.memory\n"
        "print({'numpy', 'gguf', 'llama_cpp', 'psutil', 'onnxruntime'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
