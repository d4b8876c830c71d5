"""Laws of files that are not valid models: each is refused with a sentence, whatever its bytes say."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import write_model

from edge_spec.errors import EdgeSpecError, ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel
from edge_spec.models import inspect, read_header


def test_what_cannot_be_opened_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path, tmp_path / "zero\0byte", tmp_path / ("x" * 5000)):
        with pytest.raises(ModelNotFound):
            read_header(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path) -> None:
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
    end = last.offset + last.n_bytes
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


@pytest.mark.long
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
