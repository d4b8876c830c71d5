"""The vocabulary of another tokeniser as llama.cpp knows one, for its grammars."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.llama.weights import LlamaWeights

__all__ = ["ExternalVocabulary", "Speller", "external_vocabulary_bytes"]

_NORMAL, _CONTROL = 1, 3
_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
_LETTERS = {byte: chr(byte) for byte in _PLAIN} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
"""A letter for every byte, as in GPT-2."""


class Speller(Protocol):
    """What is asked of the other tokeniser."""

    eos: int

    @property
    def n_vocab(self) -> int:
        """One more than the highest token id."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; nothing for special tokens."""

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""

    def ends(self, token: int) -> bool:
        """Whether a token ends a reply."""


class ExternalVocabulary(LlamaWeights):
    """Tokens with the same numbers and the same bytes, written to a file without weights and read by llama.cpp.

    No two tokens may have the same text there. Where they do (a letter, and its byte as a token of its own), only the
    last of them counts as text. Up to three tokens end a reply, which is all that a GGUF has names for.
    """

    def __init__(self, speller: Speller) -> None:
        self._speller = speller
        self._bytes = _unique([speller.token_bytes(token) for token in range(speller.n_vocab)])
        with tempfile.TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "vocabulary.gguf"
            _write(path, self._bytes, [token for token in range(speller.n_vocab) if speller.ends(token)], speller.eos)
            super().__init__(path, vocab_only=True, mapped=False)

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def ends(self, token: int) -> bool:
        return self._speller.ends(token) and super().ends(token)

    @cached_property
    def speaking(self) -> npt.NDArray[np.bool_]:
        spoken = np.array([bool(raw) for raw in self._bytes])
        # llama.cpp takes some texts for names of tokens that end a reply.
        taken = np.array([LlamaWeights.ends(self, token) for token in range(self.n_vocab)])
        speaking: npt.NDArray[np.bool_] = (spoken & ~taken) | self.ending
        return speaking

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return self._speller.tokenize(text, add_special=add_special)


def external_vocabulary_bytes(n_tokens: int) -> int:
    """The most that such a vocabulary takes, which it does while it is made: with the library that writes it.

    Measured with 4,000, 32,000 and 151,000 tokens of 3 to 9 bytes: at most 4, 13 and 34 MiB.
    """
    return (7 << 20) + 224 * n_tokens


def _unique(pieces: Sequence[bytes]) -> list[bytes]:
    last = {piece: token for token, piece in enumerate(pieces)}
    return [piece if last[piece] == token else b"" for token, piece in enumerate(pieces)]


def _write(path: Path, pieces: Sequence[bytes], ends: Sequence[int], eos: int) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # A space is none of the letters, so these names are no token's text.
    texts = ["".join(map(_LETTERS.__getitem__, piece)) or f"no text {token}" for token, piece in enumerate(pieces)]
    writer.add_token_list(texts)
    writer.add_token_types([_NORMAL if piece else _CONTROL for piece in pieces])
    writer.add_token_merges(["a b"])  # one at least, and never used
    ordered = sorted(ends, key=lambda token: token != eos)
    adders = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, token in zip(adders, ordered, strict=False):
        add(token)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
