"""Laws of grammars: the mask comes first and costs little, drafts follow it, and what was tried leaves no trace."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculator_replies import reply_of

import edge_spec
from edge_spec.errors import GrammarDeadEnd, SettingsError, StateError
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.grammar import GrammarState
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.modes import Mode
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table

FORM = r"""
# A record with a free name and two choices.
root ::= "{\"name\": \"" [A-Za-zäöü ]{1,20} "\", \"age\": " [1-9] [0-9]? ", \"animal\": " animal "}"
animal ::= "\"dog\"" | "\"東京\""
"""


class Fixed:
    """A grammar that always allows the same tokens, and counts how many it was asked about."""

    def __init__(self, mask: Sequence[bool]) -> None:
        self.mask = mask
        self.asked = 0

    def start(self) -> Fixed:
        return self

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        self.asked += len(tokens)
        return [bool(self.mask[token]) for token in tokens]

    def after(self, token: int) -> Fixed:
        return self

    def forced(self, most: int) -> list[int]:
        return []

    def learn(self, token: int) -> None:
        """Nothing is forced, so nothing can be cut."""


class Trap(Fixed):
    """Allows everything but goes nowhere after token 0."""

    def after(self, token: int) -> Fixed:
        return Fixed([False] * len(self.mask)) if token == 0 else self


# --- the mask comes first


@pytest.mark.long
def test_asking_about_few_tokens_is_the_same_as_masking_all_of_them_first() -> None:
    n_possible: Counter[bool] = Counter()

    @settings(max_examples=400)
    @given(seed=st.integers(0, 2**32), n=st.integers(1, 400))
    def compare(seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        row = (rng.normal(size=n) * rng.choice([0.01, 1.0, 3.0, 8.0])).astype(np.float32)
        if rng.random() < 0.3:
            row = row.round()
        if rng.random() < 0.3:
            row[rng.random(n) < 0.3] = rng.choice([-np.inf, np.nan])
        if np.isnan(row).all():  # an error, with a law of its own
            row[0] = 0.0
        mask = rng.random(n) < rng.choice([0.02, 0.5, 0.98])
        mask[rng.integers(n)] = True
        options: dict[str, list[Any]] = {
            "temperature": [0.0, 0.7, 1.5],
            "top_k": [0, 1, 40],
            "top_p": [1.0, 0.9, 0.3],
            "min_p": [0.0, 0.05, 0.5],
            "typical_p": [1.0, 1.0, 0.8],
            "top_n_sigma": [-1.0, -1.0, 1.0],
            "repeat_penalty": [1.0, 1.3],
            "mirostat": [0, 0, 2],
            "xtc_probability": [0.0, 0.5],
        }
        values = {name: some[rng.integers(len(some))] for name, some in options.items()}
        s = SamplerSettings(**values, seed=seed)
        text = rng.integers(n, size=5).tolist()
        masked = np.where(mask, row, np.float32(-np.inf))
        plain, constrained = Sampler(s, text), Sampler(s, text, grammar=Fixed(mask.tolist()))
        possible = bool(np.isfinite(masked).any())
        n_possible[possible] += 1
        # Where nothing that is allowed has any weight, it is the first of it.
        expected = plain.pick(masked, text) if possible else int(mask.argmax())
        assert constrained.pick(row, text) == expected, values
        assert constrained.guess(row, text, 1)[0][0] == expected, values

    compare()
    assert n_possible[True] > 300 and n_possible[False] > 0


def test_a_grammar_is_asked_about_few_tokens_while_these_decide() -> None:
    rng = np.random.default_rng(1)
    for share in (0.3, 0.9):
        grammar = Fixed((rng.random(50_000) < share).tolist())
        sampler = Sampler(SamplerSettings(), [1], grammar=grammar)
        for index in range(20):
            text = [1] + [grammar.mask.index(True)] * index
            sampler.pick((rng.normal(size=50_000) * 3).astype(np.float32), text)
        assert grammar.asked < 20 * 300


def test_a_grammar_that_allows_nothing_says_so() -> None:
    sampler = Sampler(SamplerSettings(), [1], grammar=Trap([True] * 5))
    row = np.arange(5, dtype=np.float32)
    assert sampler.pick(row, [1, 4]) in range(5)
    with pytest.raises(GrammarDeadEnd, match="after 2 tokens"):
        sampler.pick(row, [1, 4, 0])
    assert sampler.guess(row, [1, 4, 0], 3) == []


# --- table models: texts and traces


@pytest.mark.long
@given(st.data())
@settings(max_examples=200)
def test_a_reply_follows_its_grammar_and_is_the_same_with_every_drafter(
    cases: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    case = dataclasses.replace(data.draw(cases), constrained=True)
    drafted, plain = case.generation(), case.generation(drafts=False)
    assert drafted.read() == plain.read()
    assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, plain.finish_reason)
    assert case.grammar().takes(drafted.token_ids)
    assert plain.statistics.drafted == 0


@pytest.mark.long
@given(st.data())
@settings(max_examples=80)
def test_what_was_tried_leaves_no_trace(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """Picking elsewhere, moving on and cutting the text before change no pick; a resumed sampler continues alike."""
    case = dataclasses.replace(data.draw(cases), constrained=data.draw(st.booleans()))
    chance = np.random.default_rng(case.seed)
    rows = chance.normal(size=(20, case.n_vocab)).astype(np.float32) * 2
    plain = dataclasses.replace(case.sampling, penalty_window=0, dry_multiplier=0.0)
    clean, used = (Sampler(plain, case.prompt, grammar=case.grammar()) for _ in range(2))
    text, other = list(case.prompt), list(case.prompt)
    for index, row in enumerate(rows):
        for _ in range(2):
            tried = list(other)
            for wild in rows[:3]:
                view = used.view().view()
                tried.append(view.pick(wild, tried))
                view.guess(wild, tried, 2)
        token = clean.pick(row, text)
        assert used.pick(row, other) == token
        text.append(token)
        other.append(token)
        if chance.random() < 0.5:
            used.commit(other)
            if len(other) > 6:
                n = int(chance.integers(1, 3))
                del other[2 : 2 + n]
                used.forget(n)
        if index == 10:
            clean.commit(text)
            resumed = Sampler(plain, case.prompt, grammar=case.grammar())
            resumed.resume(text[len(case.prompt) :], clean.state())
            clean = resumed


def test_a_reply_that_the_grammar_does_not_allow_is_not_resumed() -> None:
    sampler = Sampler(SamplerSettings(), [1], grammar=Fixed([True, False]))
    sampler.resume([0, 0])
    with pytest.raises(StateError, match="token 1"):
        sampler.resume([0, 1, 0])


def test_what_has_to_come_is_drafted_and_what_cannot_is_not(letters: Any, letter_grammar: Any) -> None:
    grammar = letter_grammar(0, 6, -1)
    # 0 and 1 alternate, then comes a choice.
    grammar.next = [{0: 1}, {1: 2}, {0: 3}, {1: 4}, {2: 0, 3: 0}]
    replies = []
    for forces in (True, False):
        drafter = NgramDrafter()
        drafter.takes_guidance = forces
        speculator = Slot(TableModel(random_table(6, order=1)), drafter)
        reply = reply_of(
            speculator, lambda: 3, letters(), [5, 4], SamplerSettings(seed=1), max_tokens=60, grammar=grammar
        )
        reply.read()
        replies.append(reply)
    guided, plain = replies
    assert guided.token_ids == plain.token_ids
    # Four of five tokens are forced.
    assert guided.statistics.mean_length > 2.5
    assert guided.statistics.mean_length > plain.statistics.mean_length + 0.5


def test_a_dead_end_that_only_a_drafter_meets_is_none(letters: Any) -> None:
    table = random_table(6, order=1, seed=3)
    table[..., 0] = -50.0
    trapped = table.copy()
    trapped[..., 0] = 50.0
    for drafter in (
        ModelDrafter(TableModel(trapped), width=2, depth=3),
        HierarchyDrafter(NgramDrafter(), TableModel(trapped)),
    ):
        speculator = Slot(TableModel(table), drafter)
        reply = reply_of(
            speculator, lambda: 4, letters(), [1], SamplerSettings(seed=1), max_tokens=20, grammar=Trap([True] * 6)
        )
        reply.read()
        assert reply.finish_reason == "length"


# --- grammars over the tokens of a model


def after(state: GrammarState, token: int) -> GrammarState:
    following = state.after(token)
    assert following is not None
    return following


def grammar_of(vocabulary: LlamaWeights, text: str) -> GuidedGrammar:
    return GuidedGrammar(GuidedVocabulary(vocabulary), gbnf_to_lark(text))


@pytest.mark.long
def test_a_form_is_filled_in_alike_in_every_mode(probe_cache: Path) -> None:
    wanted = re.compile(r'\{"name": "[A-Za-zäöü ]{1,20}", "age": [1-9][0-9]?, "animal": ("dog"|"東京")\}')
    replies: dict[str, list[Any]] = {}
    for mode in ("off", "ngram", "tree", "hierarchy"):
        with edge_spec.load("demo", speculation=mode, n_ctx=256, cache_dir=probe_cache, n_threads=1) as model:
            replies[mode] = [
                model.generate("Tell me about a dog.", seed=seed, grammar=FORM, **more)
                for seed, more in enumerate([{}, {"temperature": 0}, {"mirostat": 2}, {"dry_multiplier": 1}])
            ]
            for reply in replies[mode]:
                assert wanted.fullmatch(reply.read()), reply.text
                assert reply.finish_reason == "eos"
    for mode, found in replies.items():
        assert [reply.token_ids for reply in found] == [reply.token_ids for reply in replies["off"]], mode
        if mode != "off":
            assert all(reply.statistics.mean_length > 1.5 for reply in found), mode


def test_states_of_a_grammar_do_not_disturb_each_other(weights: Callable[[str], LlamaWeights]) -> None:
    vocabulary = weights("target")
    everything = range(vocabulary.n_vocab)
    start = grammar_of(vocabulary, FORM).start()
    before = list(start.allowed(everything))
    beginnings = [token for token in everything if before[token]]
    assert beginnings
    assert all(b'{"name": "'.startswith(vocabulary.token_bytes(token)[:10]) for token in beginnings)
    assert b"".join(map(vocabulary.token_bytes, start.forced(40))) == b'{"name": "'
    for token in beginnings:
        state = start.after(token)
        assert state is not None
        state.after(list(state.allowed(everything)).index(True))
    assert list(start.allowed(everything)) == before


def test_tokens_without_text_or_beyond_the_vocabulary_are_not_allowed(weights: Callable[[str], LlamaWeights]) -> None:
    vocabulary = weights("target")
    state = grammar_of(vocabulary, "root ::= .*").start()
    may = list(state.allowed([*range(vocabulary.n_vocab), vocabulary.n_vocab, vocabulary.n_vocab + 900]))
    assert may[-2:] == [False, False]
    for token in range(vocabulary.n_vocab):
        if not vocabulary.token_bytes(token):
            assert may[token] == vocabulary.ends(token)


def test_asking_about_all_tokens_says_what_asking_about_each_says(weights: Callable[[str], LlamaWeights]) -> None:
    vocabulary = weights("target")
    for text in (FORM, "root ::= [äöü東-語]+ | [0-9]*", r'root ::= "\u00e9" [^a-z]*'):
        grammar = grammar_of(vocabulary, text)
        state = grammar.start()
        path: list[int] = []
        for _ in range(4):
            everything = list(state.allowed(range(vocabulary.n_vocab)))
            # Asked about once more: what has been asked about all is remembered.
            state = reduce(after, path, grammar.start())
            assert [state.allowed([token])[0] for token in range(vocabulary.n_vocab)] == everything
            path.append(max(token for token, may in enumerate(everything) if may and not vocabulary.ends(token)))
            state = after(state, path[-1])


def test_the_end_is_forced_where_nothing_else_is_left(weights: Callable[[str], LlamaWeights]) -> None:
    vocabulary = weights("target")
    forced = grammar_of(vocabulary, 'root ::= "yes"').start().forced(9)
    assert b"".join(map(vocabulary.token_bytes, forced)) == b"yes"
    assert forced[-1] == vocabulary.eos
    assert grammar_of(vocabulary, 'root ::= "yes"*').start().forced(9) == []


def test_forced_text_is_drafted_as_it_was_cut_before(weights: Callable[[str], LlamaWeights]) -> None:
    vocabulary = weights("target")
    start = grammar_of(vocabulary, 'root ::= "yesterday" [0-9]').start()
    letters = {vocabulary.token_bytes(token): token for token in range(vocabulary.n_vocab)}
    state, cut = start, [letters[piece] for piece in (b"y", b"e", b"st")]
    assert start.forced(9)[:3] != cut
    for token in cut:
        state.learn(token)
        following = state.after(token)
        assert following is not None
        state = following
    assert start.forced(9)[:3] == cut
    for at in (start, state):
        assert b"yesterday".endswith(b"".join(map(vocabulary.token_bytes, at.forced(9))))


BAD = {
    'root ::= "a': "line 1: a text in quotes is never closed",
    'root ::= "a"\nb ::= [a-': "line 2: a set in brackets is never closed",
    'top ::= "a"': "no rule named root",
    "": "no rule named root",
    'root ::= "a" b': "line 1: rule 'root' uses 'b', which is not defined",
    'root ::= ("a" | (b))': "line 1: rule 'root' uses 'b', which is not defined",
    'root ::= ("a"': "line 1: '.' is never closed",
    'root ::= "a")': "line 1: '.' was not expected",
    "root ::= * ": "line 1: there is nothing before '.' to repeat",
    'root ::= "a"{3,2}': "line 1: .* ends before it begins",
    'root ::= "a"{9999}': "line 1: .* repeats too often",
    r'root ::= "\q"': "line 1: .* is not an escape",
    "root ::= []": "line 1: an empty set",
    "root ::= [z-a]": "line 1: .* ends before it begins",
    r'root ::= "\uD800"': "line 1: .* is not an escape, or not of a character",
    'root = "a"': "line 1: .* has no meaning",
    'root ::= "a"\nroot ::= "b"': "line 2: rule 'root' is defined twice",
    "root ::= " + "(" * 500 + '"a"' + ")" * 500: "nested deeper",
    'root ::= <|no-such-token|> "a"': "line 1: tokens such as .* are not supported",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_grammar_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(SettingsError, match=BAD[text]) as caught:
        gbnf_to_lark(text)
    assert caught.value.hint


TOO_MUCH = 'root ::= (("a"{100,2000}){9,2000}){9,2000}'
"""Can be read in so many ways that they are not followed for long."""


def test_a_dead_end_is_an_error_and_the_next_reply_is_written(probe_cache: Path) -> None:
    with edge_spec.load("demo", speculation="ngram", n_ctx=128, cache_dir=probe_cache, n_threads=1) as model:
        reply = model.generate("Hello", grammar=TOO_MUCH, seed=1)
        with pytest.raises(GrammarDeadEnd):
            reply.read()
        assert reply.finish_reason == "error"
        assert model.generate("Hello", grammar='root ::= "yes" | "no"', seed=1).read() in ("yes", "no")
        with pytest.raises(SettingsError, match="both"):
            model.generate("Hello", grammar='root ::= "a"', json_schema={})
        with pytest.raises(SettingsError, match="text"):
            model.generate("Hello", grammar=3)  # type: ignore[arg-type]


def test_drafts_of_no_token_at_all_leave_a_guided_text_alone(probe_cache: Path) -> None:
    """Of a drafter by strangers, in side branches and more than it is asked for."""

    class Nonsense(Drafter):
        def draft(self, limit: int) -> Tree:
            tokens = (1 << 20, *self.text.tokens[-1:] * limit, -1, 1 << 31)
            return Tree(tokens, (-1, *range(-1, len(tokens) - 2)))

    nonsense = Mode(name="nonsense", build=lambda models: Nonsense(), limit=4, target_trees=True)
    texts = []
    for mode in ("off", nonsense):
        with edge_spec.load("demo", speculation=mode, n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
            texts.append(model.generate("Who?", grammar=FORM, seed=3).read())
    assert texts[0] == texts[1]
    assert re.fullmatch(r'\{"name": ".{1,20}", "age": [1-9][0-9]?, "animal": "(dog|東京)"\}', texts[0])
