"""Laws of quantizing: the new file is whole or not there, of the type that was asked for, and writes text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gguf_files import MATRICES, write_gguf

import edge_spec
from edge_spec.cli import main
from edge_spec.errors import DiskFull, SettingsError, UnsupportedModel
from edge_spec.llama_cpp.quantize import quantizations, quantize
from edge_spec.models import ModelFile, check_pair, inspect


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("source") / "f16.gguf"
    return inspect(write_gguf(path, kinds=dict.fromkeys(MATRICES, "F16")))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "most"), [("Q4_K_M", "Q4_K"), *((kind, kind) for kind in ("Q4_0", "Q8_0", "TQ2_0", "Q1_0"))]
)
def test_a_model_is_written_in_another_type(
    kind: str, most: str, source: ModelFile, tmp_path: Path, probe_cache: Path
) -> None:
    steps: list[tuple[int, int]] = []
    out = tmp_path / "out.gguf"
    n_bytes = quantize(source, out, kind, n_threads=1, on_progress=lambda *step: steps.append(step))
    made = inspect(out)
    assert made.quantization == most
    assert n_bytes == out.stat().st_size < source.weight_bytes
    assert steps == sorted(steps) and steps[-1] == (len(source.tensors), len(source.tensors))
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    check_pair(source, made)
    with edge_spec.load(out, n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
        reply = model.generate("A", max_tokens=8, temperature=0, ignore_eos=True)
        reply.read()
        assert len(reply.token_ids) == 8


def test_weights_that_are_no_numbers_are_refused_in_one_line(
    source: ModelFile, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = bytearray(source.path.read_bytes())
    tensor = next(each for each in source.tensors if each.name == "output_norm.weight")
    raw[tensor.offset : tensor.offset + 4] = b"\0\0\xc0\x7f"
    (tmp_path / "nan.gguf").write_bytes(raw)
    with pytest.raises(UnsupportedModel, match=r"output_norm\.weight of nan\.gguf has values that are not numbers"):
        quantize(inspect(tmp_path / "nan.gguf"), tmp_path / "out.gguf", "Q8_0", n_threads=1)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "out.gguf").exists()


def test_what_cannot_be_is_refused_and_leaves_nothing(
    source: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(SettingsError, match="Q4_K_M"):
        quantize(source, out, "Q3_14")
    quantized = inspect(write_gguf(tmp_path / "q.gguf"))
    with pytest.raises(SettingsError, match="quantized already"):
        quantize(quantized, out, "Q8_0")
    with pytest.raises(SettingsError, match="there already"):
        quantize(source, quantized.path, "Q8_0")
    with pytest.raises(SettingsError, match="no folder"):
        quantize(source, tmp_path / "no" / "out.gguf", "Q8_0")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DiskFull):
        quantize(source, out, "Q8_0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.gguf"]


def test_every_name_that_a_file_can_have_will_do(source: ModelFile, tmp_path: Path) -> None:
    out = tmp_path / f"{'x' * 250}.gguf"
    quantize(source, out, "Q8_0", n_threads=1)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_types_that_need_more_than_a_model_are_not_offered() -> None:
    offered = quantizations()
    assert {"Q4_0", "Q4_K_M", "Q8_0", "F16", "IQ4_NL", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"} <= set(offered)
    assert not {"IQ1_S", "IQ2_XXS"} & set(offered)


def test_the_command_says_how_large_the_file_is(
    source: ModelFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--requantize", "--threads", "1"]
    with pytest.raises(SystemExit) as left:
        main(["quantize", str(source.path), str(tmp_path / "a.gguf"), "--type", "q4_0", *again])
    assert not left.value.code
    assert "a.gguf: 1 MiB, was 3 MiB" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["quantize", str(source.path), str(tmp_path / "b.gguf"), "--type", "Q9"])
    assert left.value.code == 2
    assert "--type is 'Q9'" in capsys.readouterr().err
