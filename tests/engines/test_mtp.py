"""Laws of layers for further tokens (MTP): what they compute, compared with a network in float64 and llama.cpp."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_logits import by_row, changed, set_fact
from float_networks import last_rows, layer_inputs, mtp_rows
from hybrid_shapes import SMALL_HYBRIDS, HybridShape, write_hybrid
from llama_eagle3 import mtp_drafts_on_llama
from lone_text import lone_text
from mtp_files import beside, rewritten, with_own_tables

from edge_spec.engines.base import ModelSettings
from edge_spec.engines.onnx.head_model import HeadPath
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.registry import engine
from edge_spec.models import inspect, kept_tokens
from edge_spec.models.pairs import drafter_file
from edge_spec.speculation.tree import Tree

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

N_VOCAB = 384
TEXT = np.random.default_rng(4).integers(3, N_VOCAB, 70).tolist()
QWEN35 = replace(SMALL_HYBRIDS["qwen35"], n_layers=4, state=64, attention=(1, 3), mtp=1)
SHAPES = {
    "qwen35": QWEN35,
    "qwen35, with the embeddings as its output": replace(QWEN35, tied=True),
    "qwen35moe": replace(QWEN35, architecture="qwen35moe", experts=(8, 2, 96)),
}
TRUNK = QWEN35.n_layers


def written(folder: Path, name: str, kind: str = "F32") -> Path:
    return write_hybrid(folder / "model.gguf", SHAPES[name], kind, seed=1)


def own_tables(folder: Path) -> Path:
    sizes = {"n_layers": TRUNK, "n_embd": QWEN35.n_embd, "n_vocab": N_VOCAB}
    return with_own_tables(written(folder, "qwen35"), folder / "own.gguf", **sizes)


def without_norm(folder: Path) -> Path:
    keep = lambda name: "shared_head_norm" not in name  # noqa: E731
    return rewritten(written(folder, "qwen35"), folder / "bare.gguf", keep=keep)


FILES: dict[str, Callable[[Path], Path]] = {
    **{name: lambda folder, name=name: written(folder, name) for name in SHAPES},
    "tables of its own": own_tables,
    "without a norm of its own": without_norm,
}


@contextmanager
def opened(path: Path, target: Path, cache: Path) -> Iterator[tuple[OnnxPath, HeadPath]]:
    """A target and the layer of a file for it, with empty caches of floats."""
    onnx, target_file = engine("onnx"), inspect(target)
    file = drafter_file(path, target_file)
    settings = onnx.resolve(target_file, ModelSettings(n_ctx=200, n_threads=1, kv_k="f32", kv_v="f32"))
    opener = onnx.opener(cache_dir=cache)
    model = lone_text(opener.open(target_file, settings).pool)
    of_head = replace(drafter_settings(settings), kv_k="f32", kv_v="f32")
    head = lone_text(opener.open(file, of_head, target=(model.pool, target_file)).pool, model)
    kept = kept_tokens(target_file, file)
    if kept is not None:
        head.pool.trim(kept)
    yield model, head
    head.close()
    model.close()
    opener.close()


def rows_of(path: Path, target: Path, cache: Path) -> tuple[Any, Any, list[int]]:
    """Return the features of a text, the rows after its last tokens and a draft, and the tokens of that draft."""
    with opened(path, target, cache) as (model, head):
        model.prefill(TEXT[:40])
        model.prefill(TEXT[40:-1])
        head.prefill(TEXT[:-4])
        tree = Tree.sequence(TEXT[-4:])
        found, drafted = [head.decode(tree).copy()], []
        for _ in range(5):
            column = int(found[-1][-1].argmax())
            drafted.append(column if head.kept is None else int(head.kept.ids[column]))
            tree = Tree((*tree.tokens, drafted[-1]), (*tree.parents, len(tree) - 1))
            found.append(head.decode(tree).copy())
        return np.array(head._features[: len(TEXT) - 1], np.float64), np.concatenate(found), drafted


def exact_rows(path: Path, features: Any, drafted: list[int], *, rounds: bool = True) -> Any:
    """What ``rows_of`` should give with these features."""
    tokens, read = TEXT[1:], features
    rows, given = mtp_rows(path, tokens, read, rounds=rounds)
    for token in drafted:
        tokens, read = [*tokens, token], np.concatenate([read, given[-1:]])
        rows, given = mtp_rows(path, tokens, read, rounds=rounds)
    return rows[-4 - len(drafted) :]


@pytest.mark.parametrize("name", FILES)
def test_a_layer_inside_a_model_computes_what_it_should(name: str, tmp_path: Path, probe_cache: Path) -> None:
    path = FILES[name](tmp_path)
    features, rows, drafted = rows_of(path, path, probe_cache)
    # They are kept in 8 bits.
    assert by_row(features, last_rows(path, TEXT[:-1])).max() < 0.01
    wanted = exact_rows(path, features, drafted)
    # Rows that are copied from the target are rounded to 4 bits, and what is multiplied with them to 8.
    assert by_row(rows, wanted).max() < (3e-4 if name == "tables of its own" else 0.02)
    assert wanted[3:-1].argmax(axis=-1).tolist() == drafted, "greedy drafts"


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_rounded_layer_computes_what_it_should(name: str, kind: str, tmp_path: Path, probe_cache: Path) -> None:
    """Activations are rounded to 8 bits where weights are quantized; experts that are close change places by that."""
    path = written(tmp_path, name, kind)
    features, rows, drafted = rows_of(path, path, probe_cache)
    assert np.median(by_row(rows, exact_rows(path, features, drafted))) < 0.05


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "tables of its own", "without a norm of its own", "beside"])
def test_llama_cpp_drafts_the_same_tokens(name: str, kind: str, tmp_path: Path, probe_cache: Path) -> None:
    """Its own network of the same files, driven as its ``draft-mtp`` drives it."""
    target = written(tmp_path, name, kind) if name in SHAPES else written(tmp_path, "qwen35", kind)
    # The output rows of a model are rounded here, and not there, unless they have 4 bits already.
    target = rewritten(target, tmp_path / "rounded.gguf", kinds={"output.weight": "Q4_0"})
    if name == "tables of its own":
        sizes = {"n_layers": TRUNK, "n_embd": QWEN35.n_embd, "n_vocab": N_VOCAB}
        target = with_own_tables(target, tmp_path / "own.gguf", **sizes)
    if name == "without a norm of its own":
        target = rewritten(target, tmp_path / "bare.gguf", keep=lambda each: "shared_head_norm" not in each)
    head = beside(target, tmp_path / "mtp-model.gguf", n_layers=TRUNK) if name == "beside" else target
    _, rows, drafted = rows_of(head, target, probe_cache)
    theirs, wanted = mtp_drafts_on_llama(target, head, TEXT, len(drafted))
    off, near = (0.02, 0.03) if kind == "F32" else (0.1, 0.05)
    # From where their two best are so close that rounding decides, drafts may go apart.
    best = np.sort(theirs, axis=-1)[:, -2:]
    n_sure = (*(np.diff(best)[:, 0] < near * theirs.std(axis=-1)), True).index(True)
    assert n_sure and drafted[:n_sure] == wanted[:n_sure]
    assert np.median(by_row(rows[3 : 3 + n_sure], theirs[:n_sure])) < off


def test_a_layer_beside_a_model_is_the_one_inside(tmp_path: Path, probe_cache: Path) -> None:
    target = written(tmp_path, "qwen35", "Q8_0")
    head = beside(target, tmp_path / "mtp-model.gguf", n_layers=TRUNK)
    plain = write_hybrid(tmp_path / "plain.gguf", replace(QWEN35, mtp=0), "Q8_0", seed=1)
    (_, inside, drafted), (_, outside, same) = (
        rows_of(*files, probe_cache) for files in ((target,) * 2, (head, plain))
    )
    assert np.array_equal(inside, outside) and drafted == same


MTP = f"{TRUNK}."
CHANGED = (
    *(f"{MTP}nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")),
    *(f"{MTP}{name}.weight" for name in ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm")),
    *(f"{MTP}attn_{name}.weight" for name in ("q", "k", "v", "output")),
    *(f"{MTP}ffn_{name}.weight" for name in ("gate", "up", "down")),
    "token_embd.weight",
    "output.weight",
)
FACTS = {
    "rope.freq_base": 1e3,
    "rope.dimension_count": 8,
    "attention.layer_norm_rms_epsilon": 0.1,
}


def test_each_tensor_and_each_setting_counts(tmp_path: Path, probe_cache: Path) -> None:
    """A network that differs in one of them computes something else, so that the comparisons above would fail."""
    path = written(tmp_path, "qwen35")
    features, rows, drafted = rows_of(path, path, probe_cache)
    assert by_row(rows, exact_rows(path, features, drafted)).max() < 0.02

    def differ(change: Callable[[Path], object]) -> bool:
        other = tmp_path / "other.gguf"
        shutil.copyfile(path, other)
        change(other)
        return bool(by_row(rows, exact_rows(other, features, drafted)).max() > 0.04)

    rolled = {name: lambda x: np.roll(x, 1, axis=-1) for name in CHANGED}
    same = [
        name for name, change in rolled.items() if not differ(lambda other, n=name, c=change: changed(other, {n: c}))
    ]
    same += [
        name for name, value in FACTS.items() if not differ(lambda o, n=name, v=value: set_fact(o, f"qwen35.{n}", v))
    ]
    assert not same
    assert by_row(features, last_rows(changed(path, {"output_norm.weight": lambda x: x[::-1]}), TEXT[:-1])).max() > 0.04


def test_the_first_token_is_seen_by_no_other(tmp_path: Path, probe_cache: Path) -> None:
    path, rows = written(tmp_path, "qwen35"), []
    for first in (3, 300):
        with opened(path, path, probe_cache) as (model, head):
            model.prefill(TEXT[:-1])
            head.prefill([first, *TEXT[1:-4]])
            rows.append(head.decode(Tree.sequence(TEXT[-4:])).copy())
    assert np.array_equal(*rows)


LARGE: HybridShape = replace(QWEN35, n_layers=2, attention=(1,), n_embd=64, n_ff=64, n_vocab=40_000, merges=True)


def test_of_a_large_vocabulary_the_tokens_that_were_merged_first_are_drafted_and_those_that_end_a_text(
    tmp_path: Path, probe_cache: Path
) -> None:
    path = write_hybrid(tmp_path / "model.gguf", LARGE, "Q4_0", seed=1)
    with opened(path, path, probe_cache) as (model, head):
        assert head.kept is not None
        assert head.kept.ids.tolist() == [*range((1 << 15) - 2), 39_998, 39_999]
        assert head.pool.session.n_vocab == 1 << 15
        model.prefill(TEXT[:-1])
        head.prefill(TEXT[:-1])
        (row,) = head.decode(Tree.sequence(TEXT[-1:]))
        features = np.array(head._features[: len(TEXT) - 1], np.float64)
    rows, _ = mtp_rows(path, TEXT[1:], features, rounds=False)
    assert by_row(row[None], rows[-1:, head.kept.ids]).max() < 0.05


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_hidden_rows_of_models_with_recurrent_layers_are_what_goes_into_their_layers(
    architecture: str, tmp_path: Path, probe_cache: Path
) -> None:
    shape = replace(SMALL_HYBRIDS[architecture], n_layers=4, attention=(1, 3))
    path = write_hybrid(tmp_path / "model.gguf", shape, "F32", seed=1)
    onnx, file = engine("onnx"), inspect(path)
    opener = onnx.opener(cache_dir=probe_cache)
    model = lone_text(
        opener.open(file, onnx.resolve(file, ModelSettings(n_ctx=200, n_threads=1, kv_k="f32", kv_v="f32"))).pool
    )
    rows = opener.hidden_rows(model, file, (1, 2, 3))
    model.prefill(TEXT[:40])
    model.decode(Tree.sequence(TEXT[40:48]))
    model.keep(range(5))
    model.prefill(TEXT[45:])
    found = np.array(rows[: len(TEXT)], np.float64)
    model.close()
    opener.close()
    wanted = np.concatenate([layer_inputs(path, TEXT)[layer] for layer in (1, 2, 3)], axis=-1)
    # They are kept in 16 bits.
    assert by_row(found, wanted).max() < 1e-3
