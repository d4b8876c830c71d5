"""Laws of models in several files: they are what the same model in one file is, and a part that is missing is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from families import EXPERT_FAMILIES
from gguf_files import PHI3, write_gguf
from split_gguf import split_gguf

import edge_spec
from edge_spec.cli import main
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.registry import engine, settings_of
from edge_spec.errors import ModelNotFound, UnsupportedModel
from edge_spec.models import inspect

pytestmark = pytest.mark.long

MADE: dict[str, dict[str, Any]] = {
    "llama": {"rope_factors": True},
    "phi3": PHI3,
    "qwen3moe": EXPERT_FAMILIES["qwen3moe, 2 of 8"],
    "gpt-oss": EXPERT_FAMILIES["gpt-oss, 2 of 8"],
}


def text_of(path: Path, name: str, folder: Path) -> list[int]:
    with edge_spec.load(path, engine=name, speculation="off", n_ctx=128, n_threads=1, cache_dir=folder) as model:
        reply = model.generate("abc", raw=True, max_tokens=24, seed=3, ignore_eos=True)
        reply.read()
        return reply.token_ids


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ["llama", "onnx"])
def test_a_split_model_writes_what_the_whole_one_writes_and_takes_as_much(tmp_path: Path, made: str, name: str) -> None:
    if name == "onnx" and available() is not None:
        pytest.skip("the kernels were not built")
    whole = write_gguf(tmp_path / "whole.gguf", **MADE[made])
    first = split_gguf(whole, tmp_path, 3)[0]
    assert text_of(first, name, tmp_path / "split") == text_of(whole, name, tmp_path / "whole")
    settings = settings_of(128, {"n_threads": 1})
    with engine(name).estimator() as estimates:
        sizes = [estimates.footprint(inspect(path), settings, tokenizer=True) for path in (first, whole)]
    assert sizes[0].weight_bytes == sizes[1].weight_bytes
    assert sizes[0].kv_cache_bytes == sizes[1].kv_cache_bytes


def test_info_sums_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_gguf(tmp_path / "whole.gguf")
    parts = split_gguf(whole, tmp_path, 3)
    found = []
    for path in (parts[0], whole):
        with pytest.raises(SystemExit) as left:
            main(["info", str(path), "--json"])
        assert left.value.code == 0
        found.append(json.loads(capsys.readouterr().out))
    split, one = found
    assert split["bytes"] == sum(path.stat().st_size for path in parts)
    assert {key for key in one if one[key] != split[key]} <= {"path", "name", "title", "bytes"}


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_part_is_named_in_one_line(tmp_path: Path, missing: int) -> None:
    parts = split_gguf(write_gguf(tmp_path / "whole.gguf"), tmp_path, 3)
    parts[missing].unlink()
    with pytest.raises(ModelNotFound) as caught:
        inspect(parts[0])
    assert f"{parts[missing]} is missing" in caught.value.message
    assert "\n" not in str(caught.value)


def test_a_later_part_names_the_first_one(tmp_path: Path) -> None:
    parts = split_gguf(write_gguf(tmp_path / "whole.gguf"), tmp_path, 3)
    with pytest.raises(UnsupportedModel, match="00001-of-00003"):
        inspect(parts[1])


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf")
    parts, halves = split_gguf(whole, tmp_path, 3), split_gguf(whole, tmp_path, 2)
    for wrong in (parts[2], halves[1], whole):
        there = parts[1].read_bytes()
        shutil.copy(wrong, parts[1])
        with pytest.raises(UnsupportedModel, match="is not part 2 of 3"):
            inspect(parts[0])
        parts[1].write_bytes(there)
    inspect(parts[0])


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_a_change_of_any_part_makes_another_transcription(tmp_path: Path) -> None:
    parts = split_gguf(write_gguf(tmp_path / "whole.gguf"), tmp_path, 3)
    folder = transcribe(inspect(parts[0]), tmp_path / "cache").folder
    begun: list[str] = []
    again = transcribe(inspect(parts[0]), tmp_path / "cache", on_start=lambda damaged: begun.append("again"))
    assert again.folder == folder
    assert not begun
    for part in parts:
        data = bytearray(part.read_bytes())
        data[-20] ^= 1
        part.write_bytes(data)
        transcribe(inspect(parts[0]), tmp_path / "cache", on_start=lambda damaged: begun.append("changed"))
    assert begun == ["changed"] * 3
