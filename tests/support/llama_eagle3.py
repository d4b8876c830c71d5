"""llama.cpp's own EAGLE-3 heads and MTP layers, driven as its ``common/speculative.cpp`` drives them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["drafts_on_llama", "mtp_drafts_on_llama"]

Rows = npt.NDArray[np.float32]

_ENCODE, _DECODE = 0, 1


class _Embedding(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("n_rows", ctypes.c_size_t),
        ("n_embd", ctypes.c_size_t),
    )


def drafts_on_llama(
    target: Path, head: Path, text: Sequence[int], layers: Sequence[int], *, width: int, n_drafts: int
) -> tuple[Rows, list[int]]:
    """Return the head's rows after the last token of a text and after each draft but the last, and the greedy drafts.

    Args:
        layers: that the head reads.
        width: of the head.
    """
    llama = _Llama()
    target_model, target_context = llama.opened(target)
    head_model, head_context = llama.opened(head, other=target_context)
    try:
        for layer in layers:
            llama.read_layer(target_context, layer, True)
        llama.give_features(head_context, True, True)
        n, known = len(text) - 1, list(text)
        tokens = (ctypes.c_int32 * n)(*known[:-1])
        assert llama.c.llama_decode(target_context, llama.c.llama_batch_get_one(tokens, n)) == 0
        n_embd = llama.c.llama_model_n_embd(target_model)
        read = [llama.rows(llama.layer(target_context, layer), n, n_embd) for layer in layers]
        features = llama.encoded(head_context, np.concatenate(read, axis=1), width)
        # Its network makes rows of all tokens of a batch, so that those that are wanted come alone.
        llama.read(head_context, known[1:-1], features[:-1], range(n - 1), wanted=False)
        return llama.drafts(head_context, known[-1], features[-1], n - 1, n_drafts)
    finally:
        for context in (head_context, target_context):
            llama.c.llama_free(context)
        for model in (head_model, target_model):
            llama.c.llama_model_free(model)


def mtp_drafts_on_llama(target: Path, head: Path, text: Sequence[int], n_drafts: int) -> tuple[Rows, list[int]]:
    """Return the rows of an MTP layer after the last token of a text and each draft but the last, and greedy drafts.

    Its driver also reads the first token of a text, before which there is nothing; no layer was taught with that, so
    here it begins with the second one.

    Args:
        head: the file with the layer, which may be the target's own.
    """
    llama = _Llama()
    target_model, target_context = llama.opened(target)
    head_model, head_context = llama.opened(head, mtp=True)
    try:
        llama.give_features(target_context, True, False)
        llama.give_features(head_context, True, True)
        n, known = len(text) - 1, list(text)
        tokens = (ctypes.c_int32 * n)(*known[:-1])
        assert llama.c.llama_decode(target_context, llama.c.llama_batch_get_one(tokens, n)) == 0
        features = llama.rows(llama.features(target_context), n, llama.c.llama_model_n_embd(target_model))
        llama.read(head_context, known[1:-1], features[:-1], range(1, n), wanted=False)
        return llama.drafts(head_context, known[-1], features[-1], n, n_drafts)
    finally:
        for context in (head_context, target_context):
            llama.c.llama_free(context)
        for model in (head_model, target_model):
            llama.c.llama_model_free(model)


class _Llama:
    """The library with the functions that its bindings lack; those of ``llama-ext.h`` have names of C++."""

    def __init__(self) -> None:
        from edge_spec.llama_cpp.library import library

        self.c: Any = library().c
        found = self.c._lib
        floats, context = ctypes.POINTER(ctypes.c_float), ctypes.c_void_p
        self.read_layer = found._Z30llama_set_embeddings_layer_inpP13llama_contextjb
        self.read_layer.argtypes = [context, ctypes.c_uint32, ctypes.c_bool]
        self.layer = found._Z30llama_get_embeddings_layer_inpP13llama_contextj
        self.layer.argtypes, self.layer.restype = [context, ctypes.c_uint32], floats
        self.give_features = found._Z26llama_set_embeddings_nextnP13llama_contextbb
        self.give_features.argtypes = [context, ctypes.c_bool, ctypes.c_bool]
        self.features = found._Z26llama_get_embeddings_nextnP13llama_context
        self.features.argtypes, self.features.restype = [context], floats
        self.feature = found._Z30llama_get_embeddings_nextn_ithP13llama_contexti
        self.feature.argtypes, self.feature.restype = [context, ctypes.c_int32], floats
        self._init, self._free = found.llama_batch_ext_init, found.llama_batch_ext_free
        self._init.argtypes, self._init.restype = [context], ctypes.c_void_p
        self._free.argtypes = [ctypes.c_void_p]
        self._add_embd, self._add_token = found.llama_batch_ext_add_embd, found.llama_batch_ext_add_token
        self._add_embd.argtypes = [ctypes.c_void_p, ctypes.c_int32, _Embedding]
        self._add_token.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
        self._set_embd, self._set_pos = found.llama_batch_ext_set_embd_token, found.llama_batch_ext_set_pos
        self._set_embd.argtypes = [ctypes.c_void_p, ctypes.c_int32, _Embedding]
        self._set_pos.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32)]
        self._set_output = found.llama_batch_ext_set_output_logits
        self._set_output.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool]
        self._process = found.llama_process
        self._process.argtypes = [context, ctypes.c_int, ctypes.c_void_p]

    def opened(self, path: Path, *, other: Any = None, mtp: bool = False) -> tuple[Any, Any]:
        """A model and a context of it, or of its layer for further tokens."""
        c = self.c
        wanted = c.llama_model_default_params()
        wanted.n_gpu_layers = 0
        wanted.load_mtp = mtp
        model = c.llama_model_load_from_file(str(path).encode(), wanted)
        assert model, path
        settings = c.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
        settings.n_threads = settings.n_threads_batch = 1
        settings.type_k = settings.type_v = 0
        settings.ctx_type = int(mtp)
        if other is not None:
            settings.ctx_other = other
        context = c.llama_init_from_model(model, settings)
        assert context, path
        return model, context

    def rows(self, at: Any, n: int, width: int) -> Rows:
        """A copy of rows of the library's."""
        return np.ctypeslib.as_array(at, (n, width)).copy()

    def encoded(self, context: Any, read: Rows, width: int) -> Rows:
        """Features of what was read of layers."""
        batch, kept = self._init(context), np.ascontiguousarray(read, np.float32)
        for place, row in enumerate(kept):
            index = self._add_embd(batch, 0, self._embedding(row))
            assert index == place
            assert self._set_pos(batch, index, ctypes.c_int32(place))
            self._set_output(batch, index, True)
        assert self._process(context, _ENCODE, batch) == 0
        self._free(batch)
        return self.rows(self.features(context), len(kept), width)

    def read(self, context: Any, tokens: Sequence[int], features: Rows, places: Sequence[int], *, wanted: bool) -> None:
        """Read some tokens with the features before them."""
        batch, kept = self._init(context), np.ascontiguousarray(features, np.float32)
        for token, row, place in zip(tokens, kept, places, strict=True):
            index = self._add_token(batch, 0, token)
            assert self._set_embd(batch, index, self._embedding(row))
            assert self._set_pos(batch, index, ctypes.c_int32(place))
            self._set_output(batch, index, wanted)
        assert self._process(context, _DECODE, batch) == 0
        self._free(batch)

    def drafts(self, context: Any, token: int, feature: Rows, place: int, n_drafts: int) -> tuple[Rows, list[int]]:
        """Rows after a token at a place and after each draft but the last, and the greedy drafts."""
        rows, drafted = list[Rows](), list[int]()
        while len(drafted) < n_drafts:
            row, feature = self.decoded(context, token, feature, place + len(drafted))
            rows.append(row)
            drafted.append(token := int(row.argmax()))
        return np.stack(rows), drafted

    def decoded(self, context: Any, token: int, feature: Rows, place: int) -> tuple[Rows, Rows]:
        """The row after a token, and the feature that it gives."""
        self.read(context, [token], feature[None], [place], wanted=True)
        n_vocab = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.c.llama_get_model(context)))
        logits = self.rows(self.c.llama_get_logits_ith(context, -1), 1, n_vocab)[0]
        return logits, self.rows(self.feature(context, -1), 1, len(feature))[0]

    def _embedding(self, row: Rows) -> _Embedding:
        return _Embedding(row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1, len(row))
