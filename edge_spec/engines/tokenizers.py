"""Tokenizers by kind of file, whichever engine computes.

A GGUF's tokenizer is llama.cpp's. A published ONNX model's is the ``tokenizer.json`` next to it. Grammars are
llama.cpp's for both, over the same tokens.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from edge_spec.errors import Sentence
from edge_spec.llama_cpp.external_vocabulary import ExternalVocabulary
from edge_spec.llama_cpp.grammar import LlamaGrammar
from edge_spec.llama_cpp.weights import LlamaWeights, vocabulary_bytes
from edge_spec.memory import Footprint, Ledger, usage
from edge_spec.models import ModelFile
from edge_spec.models.json_tokenizer import JsonTokenizer, loading_peak_bytes, tokenizer_bytes
from edge_spec.models.onnx.config_files import TOKENIZER
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = [
    "BudgetedGrammars",
    "Grammars",
    "external_vocabulary_bytes",
    "grammar_bytes",
    "grammar_lines",
    "open_tokenizer",
    "with_tokenizer",
]


def open_tokenizer(file: ModelFile) -> FileTokenizer:
    """The tokenizer of a file, without its weights.

    Raises:
        UnsupportedModel: the library that reads this kind of tokenizer cannot read it.
    """
    graph = file.graph
    if graph is not None:
        return JsonTokenizer(graph.folder / TOKENIZER, bos=graph.bos, eos=graph.eos, ends=graph.ends)
    return LlamaWeights(file.path, vocab_only=True)


def with_tokenizer(footprint: Footprint, file: ModelFile) -> Footprint:
    """The footprint of a model whose tokenizer is opened besides its weights, before them."""
    size = file.graph.tokenizer if file.graph is not None else None
    if size is None:
        return replace(footprint, vocabulary_bytes=vocabulary_bytes(file.vocabulary.n_tokens, file.n_merges))
    held = tokenizer_bytes(size)
    loading = loading_peak_bytes(size) - held - footprint.weight_bytes
    return replace(footprint, vocabulary_bytes=held, loading_bytes=max(footprint.loading_bytes, loading))


def grammar_lines(tokenizer: FileTokenizer) -> dict[str, int]:
    """What grammars over the tokens of a tokenizer take at most, by name."""
    lines = {"grammars": grammar_bytes(tokenizer.n_vocab)}
    if not isinstance(tokenizer, LlamaWeights):
        lines["vocabulary of grammars"] = external_vocabulary_bytes(tokenizer.n_vocab)
    return lines


class Grammars:
    """Makes grammars over the tokens of a tokenizer.

    Another tokenizer than llama.cpp's has to be written down for it first, which takes the time of reading a
    vocabulary.
    """

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._own: ExternalVocabulary | None = None
        if isinstance(tokenizer, LlamaWeights):
            self._vocabulary = tokenizer
        else:
            self._vocabulary = self._own = ExternalVocabulary(tokenizer)

    def new(self, text: str) -> LlamaGrammar:
        """A grammar of GBNF text.

        Raises:
            SettingsError: the grammar has a mistake.
        """
        return LlamaGrammar(self._vocabulary, text)

    def close(self) -> None:
        """Free what was made here; the tokenizer stays open. Safe to call twice."""
        if self._own is not None:
            self._own.close()


class BudgetedGrammars:
    """Makes grammars; their memory is claimed with the first one. Usable from any thread.

    Args:
        tokenizer: whose tokens grammars are made of.
        ledger: where their memory is claimed.
    """

    def __init__(self, tokenizer: FileTokenizer, ledger: Ledger) -> None:
        self._tokenizer = tokenizer
        self._ledger = ledger
        self._lines = grammar_lines(tokenizer)
        self._made: Grammars | None = None
        self._lock = threading.Lock()

    def new(self, text: str) -> LlamaGrammar:
        """A grammar of GBNF text.

        Raises:
            BudgetExceeded: memory has no room for grammars. SettingsError: the grammar has a mistake.
        """
        with self._lock:
            if self._made is None:
                self._ledger.claim_all(
                    "process", self._lines, hint=Sentence("raise {memory}, or leave the grammar out")
                )
                try:
                    self._made = self._measured()
                except BaseException:
                    self._release()
                    raise
        return self._made.new(text)

    def close(self) -> None:
        """Free them. Safe to call twice."""
        with self._lock:
            made, self._made = self._made, None
            if made is not None:
                made.close()
                self._release()

    def _measured(self) -> Grammars:
        before = usage().resident_bytes
        made = Grammars(self._tokenizer)
        grew = max(0, usage().resident_bytes - before)
        for name in list(self._lines)[1:]:
            self._ledger.measure("process", name, grew)
        return made

    def _release(self) -> None:
        for name in self._lines:
            self._ledger.release("process", name)


def grammar_bytes(n_tokens: int) -> int:
    """The most that grammars over so many tokens take, with their tables of tokens.

    Measured with four JSON schemas of up to 34 properties over 8,192 and 128,256 tokens: 3 and 6.3 MiB.
    """
    return (4 << 20) + 40 * n_tokens


def external_vocabulary_bytes(n_tokens: int) -> int:
    """The most that such a vocabulary takes: while it is made, with the library that writes the file.

    Measured with 4,000, 32,000 and 151,000 tokens of 3 to 9 bytes: at most 4, 13 and 34 MiB.
    """
    return (7 << 20) + 224 * n_tokens
