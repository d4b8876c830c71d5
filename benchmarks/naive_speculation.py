"""Naive speculation with llama.cpp's defaults, where the drafter gets the same settings as the target.

Full context for the drafter, 16-bit caches, buffers for the logits of 512 rows (on the host llama.cpp reserves these
only for programs that ask for so many, and this one does not). Greedy, three drafted tokens per round. It is the
reference of ``budget_sweep.py``, which reports where its text differs from its own plain greedy text: with llama.cpp's
defaults rows round differently at different widths.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edge_spec.llama_cpp.library import library

__all__ = ["NaiveModel", "open_naive", "write", "write_plainly"]

_BUFFERS = re.compile(r"(KV|compute|output) buffer size = +([0-9.]+) MiB")


class NaiveModel:
    """A model with the library's default parameters, except that weights are not mapped, so that they count once.

    Attributes:
        reserved_bytes: what its context reserves, by the library's log.
    """

    def __init__(self, path: Path) -> None:
        lib = library()
        self._c = c = lib.c
        params = c.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = c.LLAMA_LOAD_MODE_NONE
        self._model = c.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"{path}: {lib.complaint()}")
        self._vocab = c.llama_model_get_vocab(self._model)
        self.n_vocab: int = c.llama_vocab_n_tokens(self._vocab)
        self._context: Any = None

    def start(self, *, n_ctx: int, n_threads: int) -> None:
        """Create the context."""
        lib, c = library(), self._c
        params = c.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, n_threads, n_threads
        self.n_batch: int = params.n_batch
        log: list[str] = []
        with lib.listen(log.append):
            self._context = c.llama_init_from_model(self._model, params)
        if not self._context:
            raise ValueError(f"no context of {n_ctx} tokens: {lib.complaint()}")
        self.reserved_bytes = sum(int(float(size) * (1 << 20)) for _, size in _BUFFERS.findall("".join(log)))
        self._batch = c.llama_batch_init(self.n_batch, 0, 1)
        self.n_past = 0

    def tokenize(self, text: str) -> list[int]:
        found = np.zeros(len(text) + 8, np.int32)
        raw = text.encode()
        into = found.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        n = self._c.llama_tokenize(self._vocab, raw, len(raw), into, len(found), True, False)
        return [int(token) for token in found[:n]]

    def decode(self, tokens: Sequence[int], *, n_rows: int = 1) -> list[int]:
        """Decode tokens; returns the likeliest next token after each of the last ``n_rows``."""
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            self._batch.n_tokens = len(part)
            for place, token in enumerate(part):
                self._batch.token[place] = token
                self._batch.pos[place] = self.n_past + place
                self._batch.n_seq_id[place] = 1
                self._batch.seq_id[place][0] = 0
                self._batch.logits[place] = start + place >= len(tokens) - n_rows
            if self._c.llama_decode(self._context, self._batch) != 0:
                raise ValueError("llama.cpp cannot decode")
            self.n_past += len(part)
        rows = (self._c.llama_get_logits_ith(self._context, place - n_rows) for place in range(n_rows))
        return [int(np.argmax(np.ctypeslib.as_array(row, (self.n_vocab,)))) for row in rows]

    def rollback(self, n_past: int) -> None:
        self._c.llama_memory_seq_rm(self._c.llama_get_memory(self._context), 0, n_past, -1)
        self.n_past = n_past

    def close(self) -> None:
        if self._context:
            self._c.llama_batch_free(self._batch)
            self._c.llama_free(self._context)
        self._c.llama_model_free(self._model)


def open_naive(stack: ExitStack, path: Path) -> NaiveModel:
    """A model that is closed with ``stack``."""
    model = NaiveModel(path)
    stack.callback(model.close)
    return model


def write(
    target: NaiveModel, draft: NaiveModel, prompt: Sequence[int], n_new: int, *, n_draft: int = 3
) -> tuple[list[int], float]:
    """Tokens, and the seconds that they took, without those of the prompt."""
    for model in (target, draft):
        model.rollback(0)
    text = [*prompt, *target.decode(prompt)]
    draft.decode(prompt)
    start = perf_counter()
    while len(text) < len(prompt) + n_new:
        drafted: list[int] = []
        for _ in range(n_draft):
            drafted += draft.decode([*text, *drafted][draft.n_past :])
        picks = target.decode([text[-1], *drafted], n_rows=n_draft + 1)
        n_right = next((n for n, (a, b) in enumerate(zip(drafted, picks, strict=False)) if a != b), n_draft)
        text += picks[: n_right + 1]
        for model in (target, draft):
            model.rollback(min(model.n_past, len(text) - 1))
    return text[len(prompt) :], perf_counter() - start


def write_plainly(target: NaiveModel, prompt: Sequence[int], n_new: int) -> list[int]:
    """Plain greedy text, token by token: what ``write`` should have written."""
    target.rollback(0)
    text = target.decode(prompt)
    while len(text) < n_new:
        text += target.decode(text[-1:])
    return text
