"""The exported files as llama.cpp computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from edge_spec.engines.registry import engine
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import open_tokenizer
from edge_spec.models import inspect
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.tokens.tokenizer import Tokenizer
from edge_spec.training.acceptance import rows_after
from edge_spec.training.packing import HEAD, ID, Rows

__all__ = ["mean_loss", "opened", "token_ids"]


@contextmanager
def opened(path: Path, n_ctx: int, *, kv: str = "f16") -> Iterator[tuple[TextPath, Tokenizer]]:
    """A model and its tokenizer; ``kv`` is the type of its cache."""
    file, llama = inspect(path), engine("llama")
    # Rows are read, not drafted, so their bits may depend on the width. Fused attention does not know 32-bit caches.
    extras = {"flash_attention": kv != "f32"}
    settings = ModelSettings(n_ctx=n_ctx, kv_k=kv, kv_v=kv, max_rows=64, exact=False, extras=extras)
    with closing(llama.opener(cache_dir=None)) as opener, closing(opener.open(file, settings).pool) as pool:
        yield pool.path(), opener.tokenizer(file)


def mean_loss(model: TextPath, rows: Rows) -> float:
    """Mean cross entropy per learned token, in nats: what ``train.mean_loss`` computes in PyTorch."""
    total, count = 0.0, 0
    for row in rows:
        ids, learned = row & ID, (row[1:] & HEAD) == 0
        logits = rows_after(model, ids.tolist())[:-1].astype(np.float64)
        top = logits.max(1, keepdims=True)
        logs = top[:, 0] + np.log(np.exp(logits - top).sum(1))
        total += float((logs - logits[np.arange(len(logits)), ids[1:]])[learned].sum())
        count += int(learned.sum())
    return total / max(1, count)


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts as llama.cpp's tokenizer makes them."""
    with closing(open_tokenizer(inspect(path))) as tokenizer:
        return [tokenizer.tokenize(text, add_special=False) for text in texts]
