"""Laws of the choice between engines: the faster one where it can run the model, and one sentence where it cannot."""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf_files import MATRICES, write_gguf

import edge_spec
from edge_spec import loading
from edge_spec.cli.output import Bar
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.request import request_of
from edge_spec.engines.onnx import kernels
from edge_spec.engines.onnx.transcription import cache_folder
from edge_spec.errors import BudgetExceeded, SettingsError, UnsupportedModel

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        kernels.available() is not None or kernels.features()[0] == "reference", reason="no fast kernels here"
    ),
]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf")


def chosen(path: Path | str, cache_dir: Path | None, **values: Any) -> tuple[str, tuple[str, ...]]:
    """Engine and notes of a model, once it has written something."""
    values = {"n_ctx": 64, "n_threads": 1, "speculation": "off"} | values
    with edge_spec.load(path, cache_dir=cache_dir, **values) as model:
        assert model.generate("a", max_tokens=4, raw=True, ignore_eos=True).read()
        return model.profile.engine, model.notes


def assert_falls_back(path: Path | str, cache_dir: Path | None, why: str, **values: Any) -> None:
    engine, notes = chosen(path, cache_dir, **values)
    assert engine == "llama"
    [note] = [note for note in notes if note.startswith("llama.cpp runs ")]
    assert why in note


def test_engines_are_named_by_role(tmp_path: Path) -> None:
    def first(**names: Any) -> dict[str, str]:
        found = request_of(LoadOptions.of("demo", {"speculation": "hierarchy", "cache_dir": tmp_path, **names}))
        return {role: choices[0].name for role, choices in found.engines.items()}

    roles = ("target", "draft", "intermediate")
    assert first() == dict.fromkeys(roles, "onnx")
    assert first(engine="llama") == dict.fromkeys(roles, "llama")
    assert first(draft_engine="llama") == {"target": "onnx", "draft": "llama", "intermediate": "onnx"}
    assert first(engine="llama", draft_engine="onnx") == {"target": "llama", "draft": "onnx", "intermediate": "llama"}
    with pytest.raises(SettingsError, match="tensor"):
        first(draft_engine="tensor")


def test_auto_takes_the_engine_with_our_kernels(gguf: Path, tmp_path: Path) -> None:
    assert chosen(gguf, tmp_path / "cache") == ("onnx", ())
    assert chosen(gguf, tmp_path / "cache", engine="llama") == ("llama", ())


def test_every_role_is_chosen_for_itself(gguf: Path, tmp_path: Path) -> None:
    floats = write_gguf(tmp_path / "floats.gguf", kinds=dict.fromkeys(MATRICES, "F16"))
    asked = {"n_ctx": 64, "n_threads": 1, "speculation": "sequence", "cache_dir": tmp_path / "cache"}
    texts = []
    for target, draft in ((gguf, floats), (gguf, gguf), (floats, gguf), (floats, floats)):
        with edge_spec.load(target, draft=draft, **asked) as model:
            assert model.profile.engine == ("onnx" if target == gguf else "llama")
            assert len(model.notes) == (floats in (target, draft))
            texts.append(model.generate("a", max_tokens=20, raw=True, ignore_eos=True, seed=1).read())
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_weights_that_the_kernels_do_not_know_are_left_to_llama_cpp(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=dict.fromkeys(MATRICES, "BF16"))
    assert_falls_back(path, tmp_path / "cache", "weights of type BF16")
    path = write_gguf(tmp_path / "model.gguf", kinds=dict.fromkeys(MATRICES[:-3], "BF16"))
    assert_falls_back(path, tmp_path / "cache", "weights of type BF16")
    path = write_gguf(tmp_path / "model.gguf", kinds={"attn_k": "IQ3_S"})
    assert_falls_back(path, tmp_path / "cache", "IQ3_S")
    assert not (tmp_path / "cache" / "onnx").exists()


def test_a_processor_without_fast_kernels_is_left_to_llama_cpp(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_spec.engines.onnx.kernels.library.features", lambda: ("reference",))
    assert_falls_back(gguf, tmp_path, "processor")
    monkeypatch.setattr("edge_spec.engines.onnx.kernels.library.available", lambda: "they were not built")
    assert_falls_back(gguf, tmp_path, "they were not built")


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        ("available", "they were not built", "not available because they were not built"),
        ("features", ("reference",), "no fast kernels for this processor"),
    ],
)
def test_without_fast_kernels_llama_cpp_runs_what_was_to_run_on_onnx_runtime(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: Any, why: str
) -> None:
    monkeypatch.setattr(f"edge_spec.engines.onnx.kernels.library.{name}", lambda: found)
    assert_falls_back(gguf, tmp_path, why, engine="onnx")
    assert_falls_back(gguf, tmp_path, why, engine="onnx", kv_k="f16", kv_v="f16")
    assert not (tmp_path / "onnx").exists()
    with pytest.raises(UnsupportedModel, match="gemma2"):
        edge_spec.load(write_gguf(tmp_path / "other.gguf", architecture="gemma2"), engine="onnx", cache_dir=tmp_path)


def test_heads_that_our_attention_does_not_know_are_left_to_llama_cpp(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", head_dim=24)
    for engine in ("auto", "onnx"):
        assert_falls_back(path, tmp_path, "heads of 24 numbers", engine=engine)


def test_a_setting_of_llama_cpp_is_heeded(gguf: Path, tmp_path: Path) -> None:
    assert_falls_back(gguf, tmp_path, "repack", repack=False)
    assert_falls_back(gguf, tmp_path, "kv_k, kv_v", kv_k="q8_0", kv_v="f16")


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_a_cache_that_both_engines_have_is_no_reason_to_change(gguf: Path, tmp_path: Path, kind: str) -> None:
    with edge_spec.load(gguf, n_ctx=64, n_threads=1, cache_dir=tmp_path, kv_k=kind, kv_v=kind) as model:
        assert model.profile.engine == "onnx"
        assert ("kv", f"{kind}/{kind}") in model.profile.facts


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_k": "q8_0", "kv_v": "q8_0"}, "kv_k is 'q8_0', which has no effect on ONNX Runtime"),
        ({"n_threads_batch": 2}, "n_threads_batch has no effect on ONNX Runtime"),
    ],
)
def test_a_value_without_effect_is_named_where_another_one_has_some(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        request_of(LoadOptions.of("demo", {"engine": "onnx", **given}))
    assert str(refused.value) == f"{said}; leave it out, or use another `engine`"
    request_of(LoadOptions.of("demo", {"engine": "onnx", "kv_k": "f16", "kv_v": "f16"}))


def test_progress_is_told_until_all_is_done(tmp_path: Path) -> None:
    # Smaller ones are transcribed too quickly to be worth a sentence.
    gguf = write_gguf(tmp_path / "large.gguf", n_layers=64)
    assert edge_spec.models.inspect(gguf).weight_bytes > 20 << 20
    told: list[tuple[str, int, int]] = []
    sentences: list[str] = []
    for _ in range(2):
        edge_spec.load(
            gguf,
            n_ctx=64,
            n_threads=1,
            cache_dir=tmp_path,
            on_wait=sentences.append,
            on_progress=lambda *now: told.append(now),
        ).close()
    assert [gguf.name in sentence for sentence in sentences] == [True, True]
    transcribed = [now for stage, *now in told if stage == "transcribing"]
    assert transcribed == sorted(transcribed)
    assert len(transcribed) > 10
    assert [done == total for done, total in transcribed] == [False] * (len(transcribed) - 1) + [True]
    size = edge_spec.models.inspect(gguf).weight_bytes
    assert [now for now in told if now[0] == "loading"] == [("loading", 0, size), ("loading", size, size)] * 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "shows"),
    [
        (_Terminal, "xterm", True),
        (_Terminal, "dumb", False),
        (io.StringIO, "xterm", False),
    ],
)
def test_a_bar_is_shown_to_who_looks_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], term: str, shows: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr", stream())
    bar = Bar(after_s=0)
    bar("loading", 100, 100)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    for done in (1 << 20, 3 << 20, 4 << 20):
        bar("transcribing", done, 4 << 20)
    for done in (0, 256, 600):
        bar("reading", done, 600)
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("4.2/4.2 MB" in written) == ("reading the prompt" in written) == ("600/600" in written) == shows
    assert bool(re.search(r"\d:\d\d:\d\d", written)) == shows, "the time that is left"
    assert shows or written == ""
    assert "\x1b[?25l" not in written


def test_what_is_quickly_done_needs_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", _Terminal())
    bar = Bar()
    for done in (0, 1 << 20, 4 << 20):
        bar("loading", done, 4 << 20)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_nothing_is_transcribed_that_could_not_be_kept(gguf: Path, tmp_path: Path) -> None:
    assert_falls_back(gguf, None, "no cache folder")
    (tmp_path / "file").write_text("in the way of the folder")
    assert_falls_back(gguf, tmp_path / "file", "cannot be")


@pytest.mark.parametrize("more", [1.0, 1.9])
def test_a_disk_that_would_be_filled_is_left_alone(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: float
) -> None:
    usage, needed = shutil.disk_usage(tmp_path), int(more * gguf.stat().st_size)
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert_falls_back(gguf, tmp_path / "cache", "of disk")
    assert not list((tmp_path / "cache" / "onnx").iterdir())


def test_a_transcription_that_is_there_needs_no_room(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(gguf, tmp_path / "cache")[0] == "onnx"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert chosen(gguf, tmp_path / "cache") == ("onnx", ())


def test_memory_that_only_llama_cpp_fits_into_decides(gguf: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"n_ctx": 60_000, "n_threads": 1, "speculation": "off"}
    llama, onnx = (
        loading.plan(gguf, memory="20GiB", engine=engine, cache_dir=tmp_path, **asked).thresholds["fits"]
        for engine in ("llama", "onnx")
    )
    assert llama < onnx
    assert_falls_back(gguf, tmp_path, "memory", n_ctx=60_000, memory=(llama + onnx) // 2)
    with pytest.raises(BudgetExceeded):
        chosen(gguf, tmp_path, n_ctx=60_000, memory=llama // 2)
