"""Grammars within the memory budget."""

from __future__ import annotations

import threading

from edge_spec.engines.tokenizers import FileTokenizer, Grammars, grammar_lines
from edge_spec.memory import Ledger, usage
from edge_spec.sampling.grammar import Grammar

__all__ = ["BudgetedGrammars"]


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

    def new(self, text: str) -> Grammar:
        """A grammar of GBNF text.

        Raises:
            BudgetExceeded: memory has no room for grammars. SettingsError: the grammar has a mistake.
        """
        with self._lock:
            if self._made is None:
                self._ledger.claim_all("process", self._lines, hint="raise `memory`, or leave the grammar out")
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
