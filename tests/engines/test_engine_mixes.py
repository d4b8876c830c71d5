"""Laws of texts: the same with every drafter, whichever engine runs which model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_files import GEMMA3, PHI3, write_gguf
from lone_text import lone_text
from modes_agree import check_modes_agree, questions

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.registry import engine, settings_of
from edge_spec.errors import SettingsError, UnsupportedModel
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

MIXES = [("onnx", "onnx", "onnx"), ("onnx", "llama", "onnx"), ("llama", "onnx", "llama")]


@pytest.mark.long
@pytest.mark.parametrize(("target", "draft", "intermediate"), MIXES)
def test_text_is_identical_with_every_drafter_on_every_engine(
    probe_cache: Path, prompts: list[str], target: str, draft: str, intermediate: str
) -> None:

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.profile.engine == target
        assert model.identity == "bitwise"

    check_modes_agree(
        ("off", "sequence", "tree", "hierarchy", "ngram"),
        questions(prompts[:3], (0, 0.9), max_tokens=40),
        look,
        "demo",
        engine=target,
        draft_engine=draft,
        intermediate_engine=intermediate,
        cache_dir=probe_cache,
    )


@pytest.mark.long
def test_both_engines_write_the_same_greedy_text(probe_cache: Path, prompts: list[str]) -> None:
    """At temperature 0 two engines that round differently only part at near ties."""
    written: list[list[list[int]]] = []
    margins: list[float] = []
    for name in ("llama", "onnx"):
        with edge_spec.load(
            "demo", speculation="off", engine=name, n_ctx=256, n_threads=1, cache_dir=probe_cache
        ) as model:
            replies = [model.generate(p, max_tokens=24, temperature=0) for p in prompts]
            for reply in replies:
                reply.read()
            written.append([list(reply.token_ids) for reply in replies])
            starts = [list(reply.prompt) for reply in replies]
    opener = engine("onnx").opener(cache_dir=probe_cache)
    target = lone_text(opener.open(inspect(resolve_family("demo").target), settings_of(256, {"n_threads": 1})).pool)
    for start, *both in zip(starts, *written, strict=True):
        if both[0] != both[1]:
            n = next(n for n, (a, b) in enumerate(zip(*both, strict=False)) if a != b)
            target.rollback(0)
            target.prefill([*start, *both[0][:n]][:-1])
            row = target.decode(Tree.sequence([*start, *both[0][:n]][-1:]))[0]
            margins.append(abs(float(row[both[0][n]] - row[both[1][n]])))
    target.close()
    opener.close()
    assert len(margins) < len(prompts) / 2
    # llama.cpp keeps keys in 8 bits, which moves logits by some hundredths.
    assert all(margin < 0.1 for margin in margins), margins


def test_a_setting_that_would_change_nothing_is_refused() -> None:
    for asked in ({"kv_k": "f16"}, {"kv_k": "q8_0", "kv_v": "q8_0"}, {"kv_k": "f16", "kv_v": "f32"}):
        with pytest.raises(SettingsError, match="kv_k"):
            edge_spec.load("demo", engine="onnx", **asked)


@pytest.mark.long
@pytest.mark.parametrize("made", [GEMMA3, PHI3], ids=["gemma3", "phi3"])
def test_text_is_identical_with_every_drafter_for_every_architecture(tmp_path: Path, made: dict[str, Any]) -> None:
    target, draft, intermediate = (
        write_gguf(tmp_path / f"{seed}.gguf", **made, seed=seed, n_layers=layers)
        for seed, layers in ((0, 3), (1, 1), (0, 2))
    )

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.identity == "bitwise"

    asked = {"prompt": "abcabc", "raw": True, "ignore_eos": True, "max_tokens": 60, "seed": 3, "temperature": 0.9}
    replies = check_modes_agree(
        ("off", "sequence", "tree", "hierarchy", "ngram"),
        [asked],
        look,
        target,
        draft=draft,
        intermediate=intermediate,
        engine="onnx",
        n_ctx=128,
        cache_dir=tmp_path,
    )
    for mode in ("sequence", "tree", "hierarchy"):
        assert replies[mode][0].statistics.drafted > 0


def test_a_model_that_only_llama_cpp_runs_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", extra={"rope.scaling.type": "dynamic"})
    with pytest.raises(UnsupportedModel, match="llama"):
        edge_spec.load(path, engine="onnx", cache_dir=tmp_path)


@pytest.mark.long
def test_without_a_cache_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_gguf(tmp_path / "model.gguf")
    with edge_spec.load(path, engine="onnx", n_ctx=64, n_threads=1, cache_dir=None) as model:
        model.generate("a", max_tokens=4, raw=True).read()
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [path]
