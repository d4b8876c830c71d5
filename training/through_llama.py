"""The exported files as llama.cpp computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edge_spec.engines.llama import LlamaModel, LlamaSettings, LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree
from edge_spec.training.packing import HEAD, ID, Rows

__all__ = ["Reader", "opened", "token_ids"]

_ROWS = 64


class Reader:
    """A model that reads whole texts and tells its logits after every token."""

    def __init__(self, weights: LlamaWeights, model: LlamaModel) -> None:
        self.weights, self.model = weights, model

    def logits(self, tokens: Sequence[int], first: int = 0) -> Logits:
        """Logits after ``tokens[first]`` and each later token of a text, ``[n - first, n_vocab]``."""
        self.model.rollback(0)
        if first:
            self.model.prefill(tokens[:first])
        out = np.empty((len(tokens) - first, self.model.n_vocab), np.float32)
        for begin in range(first, len(tokens), _ROWS):
            some = list(tokens[begin : begin + _ROWS])
            out[begin - first : begin - first + len(some)] = self.model.decode(Tree.sequence(some))
            self.model.keep(range(len(some)))
        return out

    def mean_loss(self, rows: Rows) -> float:
        """Mean cross entropy per learned token, in nats: as ``train.mean_loss`` has it."""
        total, count = 0.0, 0
        for row in rows:
            ids, learned = row & ID, (row[1:] & HEAD) == 0
            logits = self.logits(ids.tolist())[:-1].astype(np.float64)
            top = logits.max(1, keepdims=True)
            logs = top[:, 0] + np.log(np.exp(logits - top).sum(1))
            total += float((logs - logits[np.arange(len(logits)), ids[1:]])[learned].sum())
            count += int(learned.sum())
        return total / max(1, count)


@contextmanager
def opened(path: Path, n_ctx: int, *, n_threads: int = 0, kv: str = "f16") -> Iterator[Reader]:
    """A model for reading; its cache holds 16-bit floats unless said otherwise."""
    weights = LlamaWeights(path)
    settings = LlamaSettings(
        n_ctx=n_ctx, n_threads=n_threads, kv_k=kv, kv_v=kv, max_rows=_ROWS, exact=False, flash_attention=kv != "f32"
    )
    try:
        model = LlamaModel(
            weights,
            settings,
            profile=NumericsProfile(engine="llama"),
            capabilities=Capabilities(can_rollback=True, takes_trees=False, widths=(), max_rows=_ROWS),
        )
        try:
            yield Reader(weights, model)
        finally:
            model.close()
    finally:
        weights.close()


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts as llama.cpp makes them."""
    weights = LlamaWeights(path, vocab_only=True)
    try:
        return [weights.tokenize(text, add_special=False) for text in texts]
    finally:
        weights.close()
