"""What the child of ``edge_spec.engines.trial`` does; it imports little, so that it starts quickly."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["DONE", "main"]

DONE = b"."
"""Said of each file that has been read."""

_MOST_BYTES = 2 << 30
"""Address space: several times what the largest vocabularies need."""

_N_CTX, _TOKENS = 256, 2000
_TEXT = "Hello, wörld!\n\n  東京 🙂 123 <|x|> </s> \t\0 naïve 'll"


def main(tokenizes: Sequence[bool]) -> NoReturn:
    """Read the files that the command names. What is raised will be raised again by whoever wants the file.

    Args:
        tokenizes: for each of them, whether text is also turned into tokens and back.
    """
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = _MOST_BYTES if most == resource.RLIM_INFINITY else min(most, _MOST_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    for path, use in zip(map(Path, sys.argv[1:]), tokenizes, strict=True):
        # A message of the interpreter at its end would cost more than it is worth.
        with suppress(Exception):
            _read_tokenizer(path) if path.suffix == ".json" else _read_gguf(path, tokenizes=use)
        os.write(1, DONE)
    # Python would tidy up while somebody waits.
    os._exit(0)


def _read_tokenizer(path: Path) -> None:
    from edge_spec.models.json_tokenizer import JsonTokenizer

    with closing(JsonTokenizer(path, bos=-1, eos=-1, ends=frozenset())) as tokenizer:
        _use(tokenizer, tokenizer.tokenize(_TEXT, add_special=True))


def _read_gguf(path: Path, *, tokenizes: bool) -> None:
    from edge_spec.errors import UnsupportedModel
    from edge_spec.llama_cpp.weights import LlamaWeights

    try:
        weights = LlamaWeights(path, dry=True)
    except UnsupportedModel:
        # Our own kernels want nothing but the vocabulary, which may be read all the same.
        weights = LlamaWeights(path, vocab_only=True)
    with closing(weights):
        if tokenizes:
            _use(weights, weights.tokenize_as_it_is(_TEXT.encode(), add_special=True))
        if weights.is_dry:
            weights.make_context(_N_CTX)


def _use(tokenizer: FileTokenizer, tokens: Sequence[int]) -> None:
    tokenizer.text(tokens)
    for token in range(0, tokenizer.n_vocab, max(1, tokenizer.n_vocab // _TOKENS)):
        tokenizer.token_bytes(token)
        tokenizer.name(token)
