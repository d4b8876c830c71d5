"""Laws of small models in large shapes: they compute what they did, and so do their heads."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from enlarged_model import write_enlarged, write_enlarged_head
from head_files import write_head
from lone_text import lone_text
from model_shapes import Shape

from edge_spec.engines.base import ModelSettings
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.registry import engine
from edge_spec.models import ModelFile, inspect, resolve_family
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

SLOW = pytest.mark.slow
TEXT = np.random.default_rng(3).integers(300, 8000, 30).tolist()
KEPT = np.arange(300, 1000, 3)


def shape(n_head: int, n_head_kv: int) -> Shape:
    return Shape(
        architecture="llama",
        n_layers=4,
        n_embd=192,
        n_ff=384,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=64,
        n_vocab=8192,
    )


def read(target: ModelFile, head: Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model after each of the last tokens of a text, and those of its head."""
    onnx = engine("onnx")
    settings = onnx.resolve(target, ModelSettings(n_ctx=64, n_threads=1))
    with (
        closing(onnx.opener(cache_dir=None)) as opener,
        closing(lone_text(opener.open(target, settings).pool)) as model,
    ):
        opened = opener.open(inspect(head), drafter_settings(settings), target=(model.pool, target))
        with closing(lone_text(opened.pool, model)) as drafter:
            model.prefill(TEXT[:-4])
            rows = model.decode(Tree.sequence(TEXT[-4:])).copy()
            model.keep(range(4))
            own = [token % len(KEPT) for token in TEXT]
            drafter.prefill(own[:-4])
            return rows, drafter.decode(Tree.sequence(own[-4:])).copy()


@pytest.mark.long
@pytest.mark.parametrize("heads", [(6, 6), pytest.param((8, 4), marks=SLOW), pytest.param((4, 1), marks=SLOW)])
def test_an_enlarged_model_and_its_head_compute_what_they_did(heads: tuple[int, int], tmp_path: Path) -> None:
    """Where each query gets keys of its own, where groups of attention heads grow, and in one group."""
    source = resolve_family("demo").intermediate
    assert source is not None
    small = inspect(source)
    write_head(tmp_path / "head.gguf", small, KEPT, (1, 2, 2), seed=5)
    big = inspect(write_enlarged(tmp_path / "big.gguf", source, shape(*heads)))
    head = write_enlarged_head(tmp_path / "big-head.gguf", tmp_path / "head.gguf", big.path, shape(*heads))
    assert (big.n_layers, big.n_embd, big.n_head, max(big.n_head_kv)) == (4, 192, *heads)
    for found, wanted in zip(read(big, head), read(small, tmp_path / "head.gguf"), strict=True):
        assert found.shape == wanted.shape
        # Both are rounded to 8 bits on the way, at other places.
        assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.05 * wanted.std()


@SLOW
def test_shapes_that_are_too_small_are_refused(tmp_path: Path) -> None:
    for wrong in (shape(1, 1), replace(shape(2, 2), n_layers=2)):
        with pytest.raises(ValueError, match="does not fit into"):
            write_enlarged(tmp_path / "big.gguf", resolve_family("demo").intermediate, wrong)
