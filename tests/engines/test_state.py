"""Laws of state: after every round, caches and drafters hold what the text says, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import Case
from random_choices import RandomChoices
from speculator_replies import step

from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.settings import context_parameters
from edge_spec.llama_cpp.library import library
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel

pytestmark = pytest.mark.long

# --- table models: every cell can be looked at


def check_table(model: TableModel, text: list[int]) -> None:
    assert model.n_past <= len(text)
    assert model.cells == tuple(text[: model.n_past])
    assert not model.pending


def check_part(part: Drafter, text: list[int], seen: Counter[type]) -> None:
    """A drafter holds ``text``, as if it had read it just now. Counts the kinds of those that were looked into."""
    seen[type(part)] += 1
    if isinstance(part, Chooser):
        for drafter in part.drafters.values():
            check_part(drafter, text, seen)
    elif isinstance(part, NgramDrafter):
        fresh = NgramDrafter(longest=part._lengths[-1], shortest=part._lengths[0])
        fresh.begin(Text(text), Sampler(SamplerSettings(), ()))
        assert part.draft(3).tokens == fresh.draft(3).tokens
    elif isinstance(part, ModelDrafter):
        (followed,) = part.followed.values()
        followed.read()
        assert followed.text.tokens == text
        check_table(followed.model, text)
    elif isinstance(part, HierarchyDrafter):
        # It may have gone ahead of the text, but never elsewhere.
        part.n_unread()
        inner = part._inner
        assert inner.text[: len(text)] == text
        check_table(inner.model, inner.text)
        check_part(inner.drafter, inner.text, seen)
    else:
        # The leaf of a hierarchy follows the text through it.
        assert isinstance(part, NoDrafter | LeafDrafter)


def check_speculator(speculator: Slot, seen: Counter[type]) -> None:
    assert speculator.model.n_past < len(speculator.text)
    check_table(speculator.model, speculator.text)
    check_part(speculator.drafter, speculator.text, seen)


def test_after_every_round_all_state_agrees_with_the_text(cases: st.SearchStrategy[Case]) -> None:
    seen: Counter[type] = Counter()

    @given(case=cases)
    @settings(max_examples=300)
    def play(case: Case) -> None:
        speculator = case.speculator()
        chance = random.Random(case.seed)
        sampler = Sampler(case.sampling, case.prompt)
        speculator.begin(case.prompt, sampler, reuse=False)
        check_speculator(speculator, seen)
        while len(speculator.text) < case.n_ctx:
            most = case.n_ctx - len(speculator.text) - 1
            done = step(speculator, min(chance.randint(0, 8), most), lambda token: token == case.end)
            assert 1 <= len(done.tokens) <= len(done.drafted) + 1
            assert len(done.drafted) == 0 or sum(done.drafted) < done.n_rows
            check_speculator(speculator, seen)
            if chance.random() < 0.2:
                # Take some back and continue elsewhere.
                length = chance.randint(len(case.prompt), len(speculator.text))
                room = case.n_ctx - length - 1
                others = [chance.randrange(case.n_vocab) for _ in range(chance.randint(0, max(0, min(3, room))))]
                speculator.replace(length, others)
                assert speculator.model.n_past <= length
                check_table(speculator.model, speculator.text)
                check_part(speculator.drafter, speculator.text, seen)
            if chance.random() < 0.05:
                break

    play()
    assert set(seen) == {
        RandomChoices,
        HierarchyDrafter,
        LeafDrafter,
        ModelDrafter,
        NgramDrafter,
        NoDrafter,
    }


@given(st.data())
@settings(max_examples=150)
def test_a_second_text_finds_no_trace_of_the_first(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    other = data.draw(st.lists(st.integers(0, case.n_vocab - 1), min_size=1, max_size=len(case.prompt)))
    used, fresh = case.speculator(), None
    for prompt in (case.prompt, other):
        sampler = Sampler(case.sampling, prompt)
        fresh = case.speculator()
        for speculator in (used, fresh):
            speculator.begin(prompt, sampler, reuse=data.draw(st.booleans()))
            check_speculator(speculator, Counter())
            for _ in range(6):
                if len(speculator.text) < case.n_ctx:
                    step(speculator, min(4, case.n_ctx - len(speculator.text) - 1))
                    check_speculator(speculator, Counter())
        n = min(len(used.text), len(fresh.text))
        assert used.text[:n] == fresh.text[:n]


# --- llama.cpp: positions and sequence ids can be, and rows


def check_cache(model: LlamaPath, n_past: int) -> None:
    """Cells 0 to ``n_past`` of sequence 0, and no other sequence alive."""
    c, memory = library().c, model.pool.context.memory
    assert model.n_past == n_past
    assert not model.pending
    assert c.llama_memory_seq_pos_max(memory, 0) == n_past - 1
    assert c.llama_memory_seq_pos_min(memory, 0) == (0 if n_past else -1)
    for other in range(1, context_parameters(model.pool.settings).n_seq_max):
        assert c.llama_memory_seq_pos_max(memory, other) == -1


def rows_of(model: LlamaPath, prompt: list[int], text: list[int]) -> np.ndarray[Any, Any]:
    """The rows of plain decoding: the prompt read at once, then one token at a time, ``[reply + 1, n_vocab]``."""
    model.rollback(0)
    model.prefill(prompt[:-1])
    rows = []
    for token in text[len(prompt) - 1 :]:
        rows.append(model.decode(Tree.sequence([token]))[0].copy())
        model.keep([0])
    return np.stack(rows)


def random_tree(chance: random.Random, truth: list[int], n_vocab: int, n: int) -> Tree:
    """A tree of ``n`` nodes that holds some of what comes, in any branch."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(n):
        parent = chance.randint(max(-1, node - 4), node - 1)
        depth = depths[parent] + 1 if parent >= 0 else 0
        depths.append(depth)
        known = depth < len(truth) and chance.random() < 0.7
        tokens.append(truth[depth] if known else chance.randrange(300, n_vocab))
        parents.append(parent)
    return Tree(tuple(tokens), tuple(parents))


@given(
    st.integers(0, 1 << 30),
    st.sampled_from([5, 40, 248]),
    st.sampled_from(["draft", "draft", "intermediate", "target"]),
)
@settings(max_examples=20)
def test_a_cache_that_held_trees_gives_the_rows_of_plain_decoding(
    open_demo: Callable[..., LlamaPath], seed: int, n_prompt: int, role: str
) -> None:
    chance = random.Random(seed)
    model, plain = open_demo(role, trees=True), open_demo(role)
    if not model.capabilities.widths or not model.capabilities.takes_trees:
        pytest.skip("on this device the model does not compute trees like sequences")
    prompt = [chance.randrange(300, model.n_vocab) for _ in range(n_prompt)]
    reply = [chance.randrange(300, model.n_vocab) for _ in range(14)]
    text = [*prompt, *reply]
    expected = rows_of(plain, prompt, text)
    model.rollback(0)
    model.prefill(prompt[:-1])
    known = n_prompt  # tokens whose text is settled
    while known < len(text):
        behind = text[model.n_past : known]
        n = chance.randint(0, model.capabilities.max_rows - len(behind))
        tree = random_tree(chance, text[known:], model.n_vocab, n).under(behind)
        grown = chance.randint(len(behind), len(tree))
        rows = [model.decode(Tree(tree.tokens[:grown], tree.parents[:grown])).copy()]
        if grown < len(tree):
            rows.append(model.decode(tree).copy())
        found = np.concatenate(rows)
        path = tree.descend(text[model.n_past :])
        for place, node in enumerate(path):
            assert np.array_equal(found[node], expected[model.n_past + place - (n_prompt - 1)])
        n_past = model.n_past
        model.keep(path)
        check_cache(model, model.n_past)
        assert n_past + len(behind) <= model.n_past <= n_past + len(path)
        known = min(n_past + len(path) + 1, len(text))
        if chance.random() < 0.3:
            known = chance.randint(n_prompt, known)
            model.rollback(min(model.n_past, known - 1))
            check_cache(model, model.n_past)
        if model.n_past >= known:
            model.rollback(known - 1)


@given(st.integers(0, 1 << 30), st.sampled_from(["sequence", "tree", "hierarchy", "ngram"]))
@settings(max_examples=24)
def test_after_every_round_positions_and_sequences_agree_with_the_text(
    open_demo: Callable[..., LlamaPath], prompts: list[str], seed: int, mode: str
) -> None:
    chance = random.Random(seed)
    target = open_demo(trees=mode == "tree")
    if not target.capabilities.widths or (mode == "tree" and not target.capabilities.takes_trees):
        pytest.skip("on this device the model does not compute drafts like plain text")
    draft = open_demo("draft", trees=mode != "sequence", exact=False)
    intermediate = open_demo("intermediate", trees=True, exact=False)
    for model in (target, draft, intermediate):
        model.rollback(0)
    width = chance.randint(2, 5) if mode != "sequence" else 1
    leaf = ModelDrafter(draft, width=width, depth=chance.randint(1, 5), min_value=chance.choice([0.0, 0.1]))
    drafter = {"ngram": NgramDrafter(), "hierarchy": HierarchyDrafter(leaf, intermediate)}.get(mode, leaf)
    prompt = target.pool.context.weights.tokenize(chance.choice(prompts), add_special=True) * chance.choice([1, 1, 3])
    sampling = SamplerSettings(seed=seed, temperature=chance.choice([0.0, 0.7, 1.0]), repeat_penalty=1.1)
    speculator = Slot(target, drafter)
    speculator.begin(prompt, Sampler(sampling, prompt), reuse=False)
    for _ in range(8):
        step(speculator, chance.randint(0, 9))
        assert target.n_past < len(speculator.text)
        check_cache(target, target.n_past)
        if mode in ("sequence", "tree"):
            leaf.read()
            assert leaf.followed[leaf.name].text.tokens == speculator.text
            check_cache(draft, draft.n_past)
        elif mode == "hierarchy":
            drafter.read()
            check_cache(intermediate, intermediate.n_past)
            check_cache(draft, draft.n_past)
            assert drafter._inner.text[: len(speculator.text)] == speculator.text
    behind = speculator.text[target.n_past :]
    last = target.decode(Tree.sequence(behind))[-1].copy()
    target.rollback(0)
    assert np.array_equal(last, rows_of(target, prompt, speculator.text)[-1])
