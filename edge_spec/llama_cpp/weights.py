"""A GGUF loaded by llama.cpp: weights and vocabulary, shared by any number of contexts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from edge_spec.errors import Closed, UnsupportedModel
from edge_spec.llama_cpp.library import library
from edge_spec.memory.usage import trim_heap
from edge_spec.models.gguf.cursor import GGUFArray
from edge_spec.models.gguf.header import read_header
from edge_spec.tokens.known_tokens import ListedTokens, require_unicode

__all__ = ["LlamaWeights", "read_as_a_trial", "vocabulary_bytes"]

_TRIED_N_CTX, _TRIED_TOKENS, _TRIED_ROWS = 256, 2000, 4
_TRIED_BYTES = 1 << 28
"""Larger files are not computed with in a trial: that would take as long as the first answer."""


class LlamaWeights(ListedTokens):
    """The weights of a GGUF, and its tokenizer.

    Attributes:
        is_dry: whether the numbers of the weights were left out.

    Args:
        repack: let the library copy weights into a layout that computes faster; else they stay mapped.
        mapped: map the file. Where weights are repacked, reading it instead avoids a second copy of them in mapped
            pages.
        dry: load everything but the numbers of the weights.
        vocab_only: load the tokenizer and no weights; no context can be made of it.
        on_share: called with the share of the weights that has been loaded, 1 at the end. What it raises ends the load.

    Raises:
        UnsupportedModel: llama.cpp cannot load the file; the error quotes its reason.
    """

    def __init__(
        self,
        path: Path,
        *,
        repack: bool = True,
        mapped: bool = True,
        vocab_only: bool = False,
        dry: bool = False,
        on_share: Callable[[float], object] = lambda share: None,
    ) -> None:
        super().__init__()
        lib = library()
        self._c = lib.c
        self.path, self.is_dry = path, dry
        params = self._c.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        params.load_mode = self._c.LLAMA_LOAD_MODE_MMAP if mapped and not dry else self._c.LLAMA_LOAD_MODE_NONE
        params.vocab_only = vocab_only
        params.no_alloc = dry

        progress = _Progress(on_share)
        params.progress_callback = self._c.llama_progress_callback(progress)
        lib.complaint()
        self._handle: Any = self._c.llama_model_load_from_file(os.fsencode(path), params)
        if progress.error is not None:
            self.close()
            raise progress.error
        if not self._handle:
            raise UnsupportedModel(
                f"llama.cpp {lib.version} cannot load {path}: {lib.complaint()}",
                hint="check that the file is whole and its architecture is supported",
            )
        # Copies that were needed while weights were repacked.
        trim_heap()
        self._vocab = self._c.llama_model_get_vocab(self._handle)
        self.n_vocab: int = self._c.llama_vocab_n_tokens(self._vocab)
        self.adds_bos: bool = self._c.llama_vocab_get_add_bos(self._vocab)
        if not self._c.llama_model_has_decoder(self._handle) or self._c.llama_model_has_encoder(self._handle):
            self.close()
            raise UnsupportedModel(f"{path} is not a decoder-only language model", hint="choose another model")
        in_sections = self._c.llama_model_rope_type(self._handle) in (
            self._c.LLAMA_ROPE_TYPE_MROPE,
            self._c.LLAMA_ROPE_TYPE_IMROPE,
        )
        name = f"{self.architecture}.rope.dimension_sections"
        if in_sections and not vocab_only and not _has_numbers(path, name):
            self.close()
            raise UnsupportedModel(f"{path} lacks {name}", hint="its architecture needs it; get the model again")

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer."""
        if self._handle is None:
            raise Closed(f"the model {self.path.name}")
        return self._handle

    def try_context(self, n_ctx: int, *, decodes: bool) -> None:
        """Make a context as large as this and free it again: the library then has planned all of its operations.

        Args:
            decodes: compute a prompt and a batch with several rows of logits: operators check their operands only then.
        """
        params = self._c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = 1
        params.n_outputs_max = _TRIED_ROWS if decodes else params.n_outputs_max
        context = self._c.llama_init_from_model(self.handle, params)
        if not context:
            return
        batch = self._c.llama_batch_init(2 * _TRIED_ROWS, 0, 1)
        try:
            if not decodes:
                return
            place = 0
            for n_tokens, n_rows in ((2 * _TRIED_ROWS, 1), (_TRIED_ROWS, _TRIED_ROWS)):
                batch.n_tokens = n_tokens
                for row in range(n_tokens):
                    batch.token[row], batch.pos[row] = row % self.n_vocab, place + row
                    batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                    batch.logits[row] = row >= n_tokens - n_rows
                if self._c.llama_decode(context, batch):
                    return
                place += n_tokens
        finally:
            self._c.llama_batch_free(batch)
            self._c.llama_free(context)

    @property
    def head_dim_k(self) -> int:
        """The size of an attention head's key."""
        found = self._metadata(f"{self.architecture}.attention.key_length")
        heads = max(1, self._c.llama_model_n_head(self.handle))
        return int(found) if found else int(self._c.llama_model_n_embd(self.handle)) // heads

    @property
    def architecture(self) -> str:
        """Such as ``llama`` or ``qwen2``."""
        return self._metadata("general.architecture")

    @property
    def is_recurrent(self) -> bool:
        """Whether some of its layers have a state instead of cells."""
        return bool(self._c.llama_model_is_recurrent(self.handle) or self._c.llama_model_is_hybrid(self.handle))

    @property
    def has_experts(self) -> bool:
        """Whether each row chooses some of its networks."""
        return self._metadata(f"{self.architecture}.expert_count") not in ("", "0")

    @property
    def n_rotary(self) -> int:
        """How many numbers of a head rotary embeddings turn."""
        found = self._metadata(f"{self.architecture}.rope.dimension_count")
        return int(found) if found else self.head_dim_k

    @property
    def has_rotary(self) -> bool:
        """Whether any layer has rotary embeddings, as far as Granite's files have a switch for them."""
        switched = self.architecture.startswith("granite")
        return not switched or self._metadata(f"{self.architecture}.rope.scaling.finetuned") != "false"

    @property
    def rope_scaling(self) -> str:
        """How positions are scaled; empty if they are not."""
        return self._metadata(f"{self.architecture}.rope.scaling.type")

    def _metadata(self, key: str) -> str:
        """Return a value of the file's metadata as text; empty if there is none."""
        buffer = ctypes.create_string_buffer(128)
        n = self._c.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

    def tokenize(self, text: str, *, add_special: bool, controls: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: add the tokens that the model expects around every text.
            controls: names of control tokens in it become these tokens; else they are text.

        Raises:
            PromptError: the text contains lone surrogates.
        """
        _ = self.handle
        require_unicode(text)
        tokens: list[int] = []
        for number, piece in enumerate([text] if controls else self._apart.split(text)):
            tokens += self.tokenize_as_it_is(piece.encode(), add_special=add_special and not number, controls=controls)
        return tokens

    def tokenize_as_it_is(self, raw: bytes, *, add_special: bool, controls: bool = True) -> list[int]:
        """Return what the library itself makes of a text."""
        room = len(raw) + 16
        while True:
            ids = (ctypes.c_int32 * room)()
            n = self._c.llama_tokenize(self._vocab, raw, len(raw), ids, room, add_special, controls)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def _controls(self) -> Iterator[int]:
        return (token for token, attribute in self._attributes.items() if attribute & self._control)

    def _found_anywhere(self) -> Iterator[int]:
        # Other tokenizers than BPE may add a space where a text is cut.
        is_free = self._c.llama_vocab_type(self._vocab) == self._c.LLAMA_VOCAB_TYPE_BPE
        return (token for token, attribute in self._attributes.items() if is_free and not attribute & self._control)

    @cached_property
    def _attributes(self) -> dict[int, int]:
        """The library's attributes of the tokens that it looks for before it tokenizes the rest."""
        special = self._control | self._c.LLAMA_TOKEN_ATTR_USER_DEFINED
        all_of_them = ((token, self._c.llama_vocab_get_attr(self._vocab, token)) for token in range(self.n_vocab))
        return {token: attribute for token, attribute in all_of_them if attribute & special}

    @property
    def _control(self) -> int:
        return int(self._c.LLAMA_TOKEN_ATTR_CONTROL | self._c.LLAMA_TOKEN_ATTR_UNKNOWN)

    def _read_bytes(self, token: int, *, special: bool = False) -> bytes:
        _ = self.handle
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._c.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""
        return bool(self._c.llama_vocab_is_eog(self._vocab, token))

    @property
    def bos(self) -> int:
        """The token that begins a text; -1 if there is none."""
        return int(self._c.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        """The token that ends a text; -1 if there is none."""
        return int(self._c.llama_vocab_eos(self._vocab))

    def close(self) -> None:
        """Free the weights; contexts made of them must be closed before. Safe to call twice."""
        handle, self._handle = self._handle, None
        if handle:
            self._c.llama_model_free(handle)


def _has_numbers(path: Path, name: str) -> bool:
    """Return whether a list of four in a file's metadata has a number above 0; the library does not show lists."""
    found = read_header(path).metadata.get(name)
    if isinstance(found, GGUFArray):
        return found.length <= _TRIED_ROWS and any(isinstance(each, int) and each > 0 for each in found.decode())
    return isinstance(found, int) and found > 0


def read_as_a_trial(path: Path, text: str | None) -> None:
    """Read a file in every way in which models of it do; what is wrong with it may end the process.

    Args:
        text: is turned into tokens and back; None for nothing.
    """
    try:
        weights = LlamaWeights(path, dry=True)
    except UnsupportedModel:
        # The vocabulary may be read all the same.
        weights = LlamaWeights(path, vocab_only=True)
    with closing(weights):
        if text is not None:
            weights.text(weights.tokenize_as_it_is(text.encode(), add_special=True))
            for token in range(0, weights.n_vocab, max(1, weights.n_vocab // _TRIED_TOKENS)):
                weights.token_bytes(token)
                weights.name(token)
        if not weights.is_dry:
            return
        weights.try_context(_TRIED_N_CTX, decodes=False)
    if path.stat().st_size <= _TRIED_BYTES:
        with closing(LlamaWeights(path, repack=False)) as weights:
            weights.try_context(_TRIED_N_CTX, decodes=True)


def vocabulary_bytes(n_tokens: int, n_merges: int) -> int:
    """Return what llama.cpp's tables for text and tokens take.

    Fitted to ten vocabularies of 32,000 to 262,144 tokens, within 7 % of each that has merges.
    """
    if n_merges:
        return (1 << 19) + 258 * n_tokens + 89 * n_merges
    return (1 << 19) + 160 * n_tokens


class _Progress:
    """What llama.cpp calls while it loads; an exception cannot pass through C."""

    def __init__(self, on_share: Callable[[float], object]) -> None:
        self.error: BaseException | None = None
        self._on_share = on_share

    def __call__(self, share: float, _: object) -> bool:
        try:
            self._on_share(share)
        except BaseException as error:
            self.error = error
        return self.error is None
