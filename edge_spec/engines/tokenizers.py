"""Tokenizers by kind of file, whichever engine computes.

A GGUF's vocabulary is read here, and by llama.cpp where it is of another kind. A published ONNX model's tokenizer is
the ``tokenizer.json`` next to it. Grammars are llguidance's for all.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from edge_spec.errors import EdgeSpecError, Sentence
from edge_spec.extras import how_to_install
from edge_spec.llama_cpp.library import why_not_installed
from edge_spec.llama_cpp.weights import LlamaWeights, vocabulary_bytes
from edge_spec.memory import Footprint, Ledger
from edge_spec.memory.usage import trim_heap
from edge_spec.models import ModelFile, json_tokenizer
from edge_spec.models.gguf.header import read_header
from edge_spec.models.gguf_tokenizer import memory
from edge_spec.models.gguf_tokenizer.tokenizer import GGUFTokenizer
from edge_spec.models.gguf_tokenizer.vocabulary import why_unknown
from edge_spec.models.json_tokenizer import JsonTokenizer
from edge_spec.models.onnx.config_files import TOKENIZER
from edge_spec.sampling.lark import Lark
from edge_spec.tokens.tokenizer import FileTokenizer

if TYPE_CHECKING:
    from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary

__all__ = ["BudgetedGrammars", "grammar_bytes", "open_tokenizer", "why_no_tokenizer", "with_tokenizer"]

_LINE = "grammars"


def open_tokenizer(file: ModelFile) -> FileTokenizer:
    """Return the tokenizer of a file, without its weights.

    Raises:
        UnsupportedModel: it contradicts itself, or what reads this kind of tokenizer cannot read it.
        EdgeSpecError: llama.cpp would read it, and is not installed.
    """
    graph = file.graph
    if graph is not None:
        return JsonTokenizer(graph.folder / TOKENIZER, bos=graph.bos, eos=graph.eos, ends=graph.ends)
    if why_unknown(file.vocabulary) is None:
        return GGUFTokenizer(read_header(file.path))
    why = why_no_tokenizer(file)
    if why is not None:
        raise EdgeSpecError(
            f"{file.path.name}: {why}, and {why_not_installed()}", hint=f"run: {how_to_install('llama')}"
        )
    return LlamaWeights(file.path, vocab_only=True)


def why_no_tokenizer(file: ModelFile) -> str | None:
    """Return why the tokenizer of a file cannot be opened with what is installed, as a clause; None if it may be."""
    foreign = why_unknown(file.vocabulary) if file.graph is None else None
    if foreign is None or why_not_installed() is None:
        return None
    return f"its vocabulary {foreign}, which llama.cpp alone may read"


def with_tokenizer(footprint: Footprint, file: ModelFile) -> Footprint:
    """Return the footprint of a model whose tokenizer is opened besides its weights, before them."""
    size = file.graph.tokenizer if file.graph is not None else None
    counts = file.vocabulary.n_tokens, file.n_merges
    if size is not None:
        held, peak = json_tokenizer.tokenizer_bytes(size), json_tokenizer.loading_peak_bytes(size)
    elif why_unknown(file.vocabulary) is None:
        held, peak = memory.tokenizer_bytes(*counts), memory.loading_peak_bytes(*counts)
    else:
        return replace(footprint, vocabulary_bytes=vocabulary_bytes(*counts))
    loading = peak - held - footprint.weight_bytes
    return replace(footprint, vocabulary_bytes=held, loading_bytes=max(footprint.loading_bytes, loading))


class BudgetedGrammars:
    """Makes grammars over the tokens of a tokenizer. Usable from any thread.

    What llguidance keeps of the tokens is made with the first grammar, and its memory claimed then.

    Args:
        ledger: where their memory is claimed.
    """

    def __init__(self, tokenizer: FileTokenizer, ledger: Ledger) -> None:
        self._tokenizer = tokenizer
        self._ledger = ledger
        self._vocabulary: GuidedVocabulary | None = None
        self._lock = threading.Lock()

    def new(self, grammar: Lark) -> GuidedGrammar:
        """Return a grammar.

        Raises:
            BudgetExceeded: memory has no room for grammars. SettingsError: the grammar has a mistake.
        """
        # The library takes longer to load than most commands run, and replies without a grammar do without it.
        from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary

        with self._lock:
            if self._vocabulary is None:
                n_bytes = grammar_bytes(self._tokenizer.n_vocab)
                self._ledger.claim("process", _LINE, n_bytes, hint=Sentence("raise {memory}, or leave the grammar out"))
                try:
                    self._vocabulary = GuidedVocabulary(self._tokenizer)
                except BaseException:
                    self._ledger.release("process", _LINE)
                    raise
                trim_heap()
        return GuidedGrammar(self._vocabulary, grammar)

    def close(self) -> None:
        """Free what was kept. Safe to call twice."""
        with self._lock:
            if self._vocabulary is not None:
                self._vocabulary = None
                self._ledger.release("process", _LINE)


def grammar_bytes(n_tokens: int) -> int:
    """Return the most that grammars over so many tokens take, with what is kept of the tokens, and while that is made.

    Measured with 8,192 to 262,144 tokens: 200 bytes for each are kept and 290 needed to make them, and the four
    grammars that are remembered take 1 to 20 MiB.
    """
    return (6 << 20) + 320 * n_tokens
