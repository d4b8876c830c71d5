"""Laws of what the training of a drafter begins with, reads and minimizes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gguf import GGUFReader  # noqa: E402
from gguf.quants import dequantize  # noqa: E402

from edge_spec.models import inspect, resolve_family  # noqa: E402
from edge_spec.training.drafter.rows import packed  # noqa: E402
from edge_spec.training.drafter.target_rows import embedding_rows  # noqa: E402
from edge_spec.training.head import summed_divergence, summed_sparse_divergence  # noqa: E402


def test_embeddings_to_begin_with_are_those_of_the_target_centered_and_small() -> None:
    target = inspect(resolve_family("demo").target)
    kept = np.arange(5, 8000, 3)
    rows = embedding_rows(target, kept)
    assert rows is not None
    assert rows.shape == (len(kept) + 1, target.n_embd)
    assert np.sqrt(np.square(rows).mean()) == pytest.approx(0.02, rel=1e-3)
    stored = next(tensor for tensor in GGUFReader(target.path).tensors if tensor.name == "token_embd.weight")
    own = dequantize(stored.data, stored.tensor_type)[kept]
    for a, b in ((0, 1), (7, 300)):
        difference, expected = rows[a] - rows[b], own[a] - own[b]
        cosine = difference @ expected / np.linalg.norm(difference) / np.linalg.norm(expected)
        assert cosine == pytest.approx(1.0, abs=1e-4)


def test_sparse_divergence_is_the_dense_one() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(70, 12)
    matrix, hidden = torch.randn(90, 16), torch.randn(70, 16)
    to_row = torch.randn(90, 12)
    found = []
    for sparse in (True, False):
        ours = [each.clone().requires_grad_() for each in (hidden, matrix)]
        if sparse:
            chances, columns = torch.softmax(teacher @ to_row.T, -1).sort(-1)
            loss = summed_sparse_divergence(ours[0], ours[1], columns, chances)
        else:
            loss = summed_divergence(ours[0], ours[1], teacher, to_row, torch.ones(70, dtype=torch.bool))
        loss.backward()
        found.append((loss.detach(), ours[0].grad, ours[1].grad))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_rows_begin_texts_whole_and_repeat_nothing() -> None:
    rng = np.random.default_rng(0)
    begins = np.cumsum([0, *rng.integers(2, 200, 60)])
    rows = packed(begins, rng.permutation(60), 128)
    used = rows[rows >= 0]
    assert len(np.unique(used)) == len(used)
    starts = set(begins[:-1].tolist())
    for row in rows:
        for before, place in zip([-2, *row], row, strict=False):
            assert place in starts or place == before + 1 or place == -1
    assert starts <= set(used.tolist())
