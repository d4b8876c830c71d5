"""Laws of EAGLE-3 heads in the published layouts: what they compute, compared with a network in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FLOAT_KINDS
from float_networks import layer_inputs
from gguf_files import N_EMBD, N_VOCAB, write_gguf
from llama_eagle3 import drafts_on_llama
from lone_text import lone_text
from published_heads import HeadNetwork, PublishedHead, write_gguf_head, write_safetensors_head

from edge_spec.engines.base import ModelSettings
from edge_spec.engines.onnx.head_model import HeadPath
from edge_spec.engines.onnx.kernels import KINDS, available
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.registry import engine
from edge_spec.models import inspect, kept_tokens
from edge_spec.models.gguf.finite import CHECKED_TYPES
from edge_spec.speculation.tree import Tree

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

TEXT = [1, *np.random.default_rng(4).integers(3, N_VOCAB, 70).tolist()]
N_LAYERS = 6
IDS = tuple(np.random.default_rng(5).permutation(N_VOCAB)[:150].tolist())
PLAIN = PublishedHead(width=256, read=N_EMBD, n_vocab=N_VOCAB, layers=(2, 3, 5), ids=IDS)

GGUF_HEADS = {
    "as llama.cpp converts them": PLAIN,
    "of its own size, with its own embeddings": replace(
        PLAIN, width=128, head_dim=80, heads=(6, 3), own=("output", "token_embd")
    ),
    "all tokens, the target's tables": replace(PLAIN, ids=None, own=()),
    "all tokens, its own output": replace(PLAIN, ids=None),
    "both norms, up to the last layer": replace(
        PLAIN, norm_before_fc=True, norm_before_residual=True, layers=(1, 4, N_LAYERS)
    ),
    "partly turned": replace(PLAIN, n_rotary=32),
    "scaled positions": replace(PLAIN, llama3=True, seed=1),
    **{f"in {kind}": replace(PLAIN, kind=kind, width=512, own=("output", "token_embd")) for kind in ("F16", "BF16")},
}
ROUNDED_HEADS = {
    f"in {kind}": replace(PLAIN, kind=kind, head_dim=64, width=512, own=("output", "token_embd"))
    for kind in ("Q8_0", "Q4_0", "Q4_K")
}
HALVES = replace(PLAIN, half_apart=True, kind="BF16")
SAFETENSORS_HEADS = {
    "angelslim": HALVES,
    "specforge": replace(HALVES, own=("output", "token_embd"), width=128, llama3=True),
    "speculators": replace(HALVES, norm_before_residual=True, head_norms=True, biases=True, n_rotary=32),
    "five layers, normalized one by one": replace(HALVES, layers=(1, 2, 3, 4, 6), fc_norm=True, norm_output=True),
    "normalized together": replace(HALVES, norm_before_fc=True, norm_output=True),
    "all tokens": replace(HALVES, ids=None, kind="F32"),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets in floats, by architecture."""
    folder = tmp_path_factory.mktemp("targets")
    made: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {"head_norms": True, "tied": True}}
    return {
        name: write_gguf(folder / f"{name}.gguf", name, kinds=FLOAT_KINDS, n_layers=N_LAYERS, seed=9, **given)
        for name, given in made.items()
    }


@contextmanager
def opened(path: Path, target: Path, cache: Path) -> Iterator[tuple[OnnxPath, HeadPath]]:
    """A target and a head for it, with empty caches of floats."""
    onnx, file, target_file = engine("onnx"), inspect(path), inspect(target)
    settings = onnx.resolve(target_file, ModelSettings(n_ctx=200, n_threads=1, trees=True, kv_k="f32", kv_v="f32"))
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


def tables_of(target: Path) -> dict[str, Any]:
    """The target's rows, output rows rounded as they are where a head takes them."""
    import gguf

    q4_0 = gguf.GGMLQuantizationType.Q4_0
    found = {
        tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(target).tensors
        if tensor.name in ("token_embd.weight", "output.weight")
    }
    output = found.get("output", found["token_embd"])
    rounded = gguf.quants.dequantize(gguf.quants.quantize(output, q4_0), q4_0)
    return {"token_embd": found["token_embd"].astype(np.float64), "output": rounded.astype(np.float64)}


def by_token(head: PublishedHead, row: Any) -> Any:
    """Logits in the order of the target's ids."""
    return row if head.ids is None else row[np.argsort(head.ids)]


def rows_of(path: Path, target: Path, cache: Path) -> tuple[Any, Any, list[int]]:
    """Return the features of a text, the rows after its last tokens and a draft, and the tokens of that draft."""
    with opened(path, target, cache) as (model, head):
        model.prefill(TEXT[:-1])
        head.prefill(TEXT[:-4])
        tree = Tree.sequence(TEXT[-4:])
        found, drafted = [head.decode(tree).copy()], []
        for _ in range(5):
            column = int(found[-1][-1].argmax())
            drafted.append(column if head.kept is None else int(head.kept.ids[column]))
            tree = Tree((*tree.tokens, drafted[-1]), (*tree.parents, len(tree) - 1))
            found.append(head.decode(tree).copy())
        return np.array(head._features[: len(TEXT) - 1], np.float64), np.concatenate(found), drafted


def exact_rows(head: PublishedHead, target: Path, features: Any, drafted: list[int]) -> Any:
    """What ``rows_of`` should give with these features."""
    network = HeadNetwork(head, tables_of(target))
    rows, given = [], features[0]
    for token, feature in zip(TEXT[1:], features, strict=True):
        row, given = network(token, feature)
        rows.append(by_token(head, row))
    for token in drafted:
        row, given = network(token, given)
        rows.append(by_token(head, row))
    return np.stack(rows[-4 - len(drafted) :])


def apart(found: Any, wanted: Any) -> float:
    """Return how far rows are from what they should be, in units of their spread."""
    return float(np.sqrt(np.mean((found - wanted) ** 2, axis=-1) / wanted.var(axis=-1)).max())


def compare(path: Path, head: PublishedHead, target: Path, cache: Path, within: float) -> None:
    features, rows, drafted = rows_of(path, target, cache)
    inputs = layer_inputs(target, TEXT[:-1])
    fused = HeadNetwork(head, {}).fused([inputs[layer] for layer in head.layers])
    # They are kept in 8 bits.
    assert apart(features, fused) < 0.01
    wanted = exact_rows(head, target, features, drafted)
    assert apart(rows, wanted) < within
    ids = np.arange(N_VOCAB) if head.ids is None else np.sort(head.ids)
    assert ids[wanted[3:-1].argmax(axis=-1)].tolist() == drafted, "greedy drafts"


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", GGUF_HEADS)
def test_a_gguf_computes_what_it_should(
    kind: str, architecture: str, targets: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    head, target = GGUF_HEADS[kind], targets[architecture]
    path = write_gguf_head(tmp_path / "head.gguf", inspect(target), head)
    # Rows that are copied from the target are rounded to 4 bits, and what is multiplied with them to 8.
    compare(path, head, target, probe_cache, 3e-4 if "output" in head.own else 0.02)


ON_LLAMA = [
    (architecture, kind)
    for architecture in ("llama", "qwen3")
    for kind, head in {**GGUF_HEADS, **ROUNDED_HEADS}.items()
    # It does not give what goes out of the last layer, and does not round the target's rows as they are copied here.
    if N_LAYERS not in head.layers and "output" in head.own
]


@pytest.mark.parametrize(("architecture", "kind"), ON_LLAMA)
def test_llama_cpp_drafts_the_same_tokens(
    architecture: str, kind: str, targets: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    """Its own network of the same files, driven as its ``draft-eagle3`` drives it."""
    head, target = {**GGUF_HEADS, **ROUNDED_HEADS}[kind], targets[architecture]
    path = write_gguf_head(tmp_path / "head.gguf", inspect(target), head)
    _, rows, drafted = rows_of(path, target, probe_cache)
    theirs, wanted = drafts_on_llama(target, path, TEXT, head.layers, width=head.width, n_drafts=len(drafted))
    ids = np.arange(N_VOCAB) if head.ids is None else np.sort(head.ids)
    assert drafted == wanted
    assert apart(rows[3 : 3 + len(drafted)], theirs[:, ids]) < (0.02 if kind in GGUF_HEADS else 0.08)


@pytest.mark.parametrize("kind", ROUNDED_HEADS)
def test_a_rounded_gguf_computes_what_it_should(
    kind: str, targets: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    """Activations are rounded to 8 bits where weights are quantized."""
    head, target = ROUNDED_HEADS[kind], targets["llama"]
    path = write_gguf_head(tmp_path / "head.gguf", inspect(target), head)
    features, rows, drafted = rows_of(path, target, probe_cache)
    assert apart(rows, exact_rows(head, target, features, drafted)) < 0.05


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", SAFETENSORS_HEADS)
def test_safetensors_compute_what_they_should(
    kind: str, architecture: str, targets: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    head, target = SAFETENSORS_HEADS[kind], targets[architecture]
    layout = kind if kind in ("angelslim", "specforge", "speculators") else "angelslim"
    path = write_safetensors_head(tmp_path / "head", head, layout=layout)
    compare(path, head, target, probe_cache, 3e-4)


WHOLE = replace(
    HALVES,
    own=("output", "token_embd"),
    norm_before_fc=True,
    norm_before_residual=True,
    norm_output=True,
    head_norms=True,
    biases=True,
    llama3=True,
)
CHANGES: dict[str, dict[str, Any]] = {
    **{name: {"changed": name} for name in WHOLE.shapes()},
    **{name: {name: False} for name in ("norm_before_residual", "norm_output", "half_apart", "llama3")},
    "layers": {"layers": (2, 5, 3)},
    "ids": {"ids": IDS[::-1]},
    "base": {"base": 6000.0},
    "n_rotary": {"n_rotary": 32},
    "epsilon": {"epsilon": 1e-2},
}


def test_each_tensor_and_each_setting_counts(targets: dict[str, Path], tmp_path: Path, probe_cache: Path) -> None:
    """A network that differs in one of them computes something else, so that the comparisons above would fail."""
    target = targets["qwen3"]
    path = write_safetensors_head(tmp_path / "head", WHOLE)
    features, rows, drafted = rows_of(path, target, probe_cache)
    inputs = layer_inputs(target, TEXT[:-1])

    def differ(head: PublishedHead) -> bool:
        fused = HeadNetwork(head, {}).fused([inputs[layer] for layer in head.layers])
        return apart(features, fused) > 0.02 or apart(rows, exact_rows(head, target, features, drafted)) > 1e-3

    assert not differ(WHOLE)
    same = [name for name, change in CHANGES.items() if not differ(replace(WHOLE, **change))]
    assert not same


def test_types_that_are_looked_through_have_kernels() -> None:
    assert set(KINDS) - {"MXFP4"} == CHECKED_TYPES


def test_the_first_token_is_seen_by_no_other(targets: dict[str, Path], tmp_path: Path, probe_cache: Path) -> None:
    """There is no feature before it; what a head drafts does not depend on it but through the target."""
    target = targets["llama"]
    path = write_gguf_head(tmp_path / "head.gguf", inspect(target), PLAIN)
    rows = []
    for first in (1, 300):
        with opened(path, target, probe_cache) as (model, head):
            model.prefill(TEXT[:-1])
            head.prefill([first, *TEXT[1:-4]])
            rows.append(head.decode(Tree.sequence(TEXT[-4:])).copy())
    assert np.array_equal(*rows)
