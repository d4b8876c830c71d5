"""Laws of the memory of grammars: it is planned, entered in the ledger and returned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from ledger_lines import lines_of

from edge_spec import TextModel
from edge_spec.engines.tokenizers import grammar_bytes
from edge_spec.errors import BudgetExceeded

MIB = 1 << 20


GRAMMARS_HELD = """
import gc, random, re, sys
from pathlib import Path
from edge_spec.engines.tokenizers import grammar_bytes
from edge_spec.memory import usage
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.grammar import Node
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary

rng = random.Random(1)
n_words = int(sys.argv[1])
words = {bytes(rng.choices(range(97, 123), k=rng.randint(3, 9))) for _ in range(n_words)}
pieces = [b"", *(bytes([n]) for n in range(256)), *sorted(words)]
class Tokenizer:
    eos, n_vocab = 0, len(pieces)
    token_bytes = pieces.__getitem__
    def tokenize(self, text, *, add_special): return []
    def ends(self, token): return token == 0

gc.collect()
before = usage().resident_bytes
vocabulary = GuidedVocabulary(Tokenizer())
grammars = []
for mark in "{([<":
    grammars.append(GuidedGrammar(vocabulary, gbnf_to_lark(f'root ::= "{mark}" [^"]*')))
    place = Node(0, grammars[-1].start(), 0.0)
    for n in range(4):
        place = place.below(int(place.mask(vocabulary.n_vocab).nonzero()[0][-1]))
print(usage().resident_bytes - before, grammar_bytes(vocabulary.n_vocab))
"""


@pytest.mark.long
@pytest.mark.parametrize("n_words", [7_000, 70_000])
def test_grammars_take_what_is_planned_and_no_more(n_words: int) -> None:
    command = [sys.executable, "-c", GRAMMARS_HELD, str(n_words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    held, planned = map(int, done.stdout.split())
    assert planned / 4 < held <= planned


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_grammars_are_entered_with_the_first_and_gone_with_the_model(
    load_demo: Callable[..., TextModel], engine: str
) -> None:
    with load_demo(speculation="off", engine=engine) as model:
        held, ledger = model.ledger.held_bytes, model.ledger
        assert "grammars" not in lines_of(model)
        for word in ("yes", "no"):
            assert model.generate("Well?", grammar=f'root ::= "{word}"').read() == word
            assert lines_of(model)["grammars"].predicted_bytes == grammar_bytes(model.n_vocab)
            assert ledger.held_bytes == held + grammar_bytes(model.n_vocab)
        ledger.check_integrity()
    assert "grammars" not in {line.name for line in ledger}


def test_without_room_a_grammar_is_refused_and_the_next_reply_is_written(load_demo: Callable[..., TextModel]) -> None:
    with load_demo(speculation="off", memory="1GiB") as model:
        text = model.generate("Hello", seed=1, max_tokens=20).read()
        model.ledger.claim("test", "all but a little", (model.ledger.left_bytes or 0) - MIB)
        held = model.ledger.held_bytes
        with pytest.raises(BudgetExceeded, match="grammars") as refused:
            model.generate("Hello", grammar='root ::= "yes"')
        assert refused.value.needed_bytes == grammar_bytes(model.n_vocab)
        assert "grammars" not in lines_of(model)
        assert model.ledger.held_bytes == held
        assert model.generate("Hello", seed=1, max_tokens=20).read() == text
        model.ledger.release("test")
        assert model.generate("Hello", grammar='root ::= "yes"').read() == "yes"
        model.ledger.check_integrity()
