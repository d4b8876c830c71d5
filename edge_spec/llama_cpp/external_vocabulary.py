"""The vocabulary of another tokenizer in the form that llama.cpp's grammars need."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models.json_tokenizer import BYTE_LETTERS
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["ExternalVocabulary"]

_NORMAL, _CONTROL = 1, 3


class ExternalVocabulary(LlamaWeights):
    """Tokens with the same ids and the same bytes, written to a file without weights that llama.cpp reads.

    A GGUF cannot have two tokens of the same text. Where the tokenizer has (a letter, and its byte as a token of its
    own), only the last of them counts as text. Up to three tokens end a reply: a GGUF has no names for more.
    """

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = range(tokenizer.n_vocab)
        self._bytes = _unique([tokenizer.token_bytes(token) for token in tokens])
        with tempfile.TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "vocabulary.gguf"
            _write(path, self._bytes, [token for token in tokens if tokenizer.ends(token)], tokenizer.eos)
            super().__init__(path, vocab_only=True, mapped=False)

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def ends(self, token: int) -> bool:
        return self._tokenizer.ends(token) and super().ends(token)

    @cached_property
    def speaking(self) -> npt.NDArray[np.bool_]:
        has_text = np.array([bool(raw) for raw in self._bytes])
        # llama.cpp takes some texts for names of tokens that end a reply.
        taken = np.array([LlamaWeights.ends(self, token) for token in range(self.n_vocab)])
        speaking: npt.NDArray[np.bool_] = (has_text & ~taken) | self.ending
        return speaking

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return self._tokenizer.tokenize(text, add_special=add_special)


def _unique(texts: Sequence[bytes]) -> list[bytes]:
    last = {raw: token for token, raw in enumerate(texts)}
    return [raw if last[raw] == token else b"" for token, raw in enumerate(texts)]


def _write(path: Path, texts: Sequence[bytes], ends: Sequence[int], eos: int) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # A space is not among the letters, so no token has the text of these names.
    names = ["".join(map(BYTE_LETTERS.__getitem__, raw)) or f"no text {token}" for token, raw in enumerate(texts)]
    writer.add_token_list(names)
    writer.add_token_types([_NORMAL if raw else _CONTROL for raw in texts])
    writer.add_token_merges(["a b"])  # the format wants at least one; it is never used
    ordered = sorted(ends, key=lambda token: token != eos)
    adders = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, token in zip(adders, ordered, strict=False):
        add(token)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
