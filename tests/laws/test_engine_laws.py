"""The engine's laws, on models whose laws are known: plain text is an exact draw, and drafts change nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from speculator_replies import reply_of, request_of
from watched_table import rounding
from weekly import sizes

from edge_spec.generation.reply import Reply
from edge_spec.generation.scheduler import Scheduler
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.target import Target
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.testing import TableModel, random_table

NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
N_DRAWS = 4_000
"""So many show a wrong temperature, see below."""


# --- plain text has the exact distribution


def distribution(row: Logits, text: list[int], asked: dict[str, Any]) -> list[float]:
    """The probabilities of the next token, as slowly and plainly as the documented order allows."""
    x = [float(logit) + asked.get("logit_bias", {}).get(token, 0.0) for token, logit in enumerate(row)]
    for token, n in Counter(text[-asked.get("penalty_window", 64) :]).items():
        repeat = asked.get("repeat_penalty", 1.0)
        x[token] = x[token] * repeat if x[token] <= 0 else x[token] / repeat
        x[token] -= n * asked.get("frequency_penalty", 0.0) + asked.get("presence_penalty", 0.0)
    order = sorted(range(len(x)), key=lambda token: -x[token])
    if asked["top_k"]:
        order = order[: asked["top_k"]]
    mass = {token: float(np.exp(x[token])) for token in order}
    total, so_far, kept = sum(mass.values()), 0.0, []
    for token in order:
        kept.append(token)
        so_far += mass[token] / total
        if so_far >= asked["top_p"]:
            break
    kept = [token for token in kept if mass[token] >= asked["min_p"] * mass[order[0]]]
    heat = {token: float(np.exp(x[token] / asked["temperature"])) for token in kept}
    return [heat.get(token, 0.0) / sum(heat.values()) for token in range(len(x))]


def replies(
    table: Logits, prompt: list[int], asked: dict[str, Any], n: int, end: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """All replies of at most ``n`` tokens and their probabilities."""
    stack: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while stack:
        reply, chance = stack.pop()
        if len(reply) == n or (reply and reply[-1] == end):
            yield reply, chance
            continue
        text = [*prompt, *reply]
        for token, p in enumerate(distribution(table[text[-2], text[-1]], text, asked)):
            if p > 0:
                stack.append(((*reply, token), chance * p))


@pytest.mark.long
@pytest.mark.parametrize("n_draws", sizes(N_DRAWS, weekly=20_000))
@pytest.mark.parametrize(
    ("n_vocab", "n", "changes"),
    [
        (5, 3, {}),
        (6, 2, {"temperature": 0.7, "top_k": 3}),
        (6, 2, {"temperature": 1.3, "top_p": 0.75}),
        (6, 2, {"min_p": 0.15, "logit_bias": {1: 1.5, 4: float("-inf")}}),
        (5, 3, {"repeat_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2, "penalty_window": 3}),
    ],
    ids=["whole", "top-k", "top-p", "min-p and bias", "penalties"],
)
def test_plain_text_has_the_exact_distribution(
    letters: Callable[..., Any], n_vocab: int, n: int, changes: dict[str, Any], n_draws: int
) -> None:
    asked = NEUTRAL | changes
    table = random_table(n_vocab, order=2, seed=11, scale=1.0)
    prompt, end = [2, 0, 1], 3
    scheduler = Scheduler(Target(Slot(TableModel(table), NoDrafter())), letters(end))
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(n_draws):
        reply = Reply(scheduler, request_of(prompt, SamplerSettings(seed=seed, **asked), max_tokens=n), lambda: 0)
        reply.read()
        seen[tuple(reply.token_ids)] += 1
    expected = {reply: chance * n_draws for reply, chance in replies(table, prompt, asked, n, end)}
    assert set(seen) <= set(expected), "a reply was written that cannot be drawn"
    common = [reply for reply in expected if expected[reply] >= 5]
    found, wanted = [seen[reply] for reply in common], [expected[reply] for reply in common]
    if n_draws - sum(wanted) >= 5:
        found.append(n_draws - sum(found))
        wanted.append(n_draws - sum(wanted))
    assert len(found) > 8
    assert chisquare(found, np.array(wanted) * sum(found) / sum(wanted)).pvalue > 1e-4


@pytest.mark.long
def test_another_distribution_would_be_noticed(letters: Callable[..., Any]) -> None:
    """The chi-square above can fail: it tells temperature 1 from 1.3."""
    table = random_table(5, order=0, seed=3, scale=1.0)
    scheduler = Scheduler(Target(Slot(TableModel(table), NoDrafter())), letters())
    seen: Counter[int] = Counter()
    for seed in range(N_DRAWS):
        asked = SamplerSettings(seed=seed, **(NEUTRAL | {"temperature": 1.3}))
        reply = Reply(scheduler, request_of([0], asked, max_tokens=1), lambda: 0)
        reply.read()
        seen[reply.token_ids[0]] += 1
    wanted = np.array(distribution(table, [0], NEUTRAL)) * N_DRAWS
    assert chisquare([seen[token] for token in range(5)], wanted).pvalue < 1e-4


# --- drafts change nothing


def outcome(reply: Reply) -> tuple[Any, ...]:
    text = reply.read()
    return reply.token_ids, text, reply.finish_reason


@pytest.mark.parametrize("n_cases", sizes(200, weekly=2_000, loop=40))
def test_text_is_identical_with_every_drafter(cases: st.SearchStrategy[Any], n_cases: int) -> None:
    @given(cases)
    @settings(max_examples=n_cases)
    def is_identical(case: Any) -> None:
        assert outcome(case.generation(drafts=True)) == outcome(case.generation(drafts=False))

    is_identical()


def drafted_and_plain(
    letters: Callable[..., Any], seed: int, beyond: int, **target: Any
) -> tuple[list[int], list[int]]:
    """Return the texts with and without drafts where a kernel rounds differently beyond so many rows."""
    table = random_table(6, order=1, seed=5)
    written = []
    for limit in (5, 0):
        model = rounding(TableModel(table, **target), lambda row, n: row[::-1].copy() if n > beyond else row)
        drafter = ModelDrafter(TableModel(random_table(6, order=1, seed=6, scale=0.3, like=table)))
        reply = reply_of(
            Slot(model, drafter),
            lambda limit=limit: limit,
            letters(),
            [1],
            SamplerSettings(seed=seed),
            max_tokens=40,
        )
        reply.read()
        written.append(reply.token_ids)
    return written[0], written[1]


def test_text_may_differ_where_widths_round_differently(letters: Callable[..., Any]) -> None:
    model = TableModel(random_table(6), widths=())
    assert model.capabilities.identity == "rounding"
    differ = 0
    for seed in range(20):
        drafted, plain = drafted_and_plain(letters, seed, 1, widths=())
        differ += drafted != plain
    assert differ == 20


@pytest.mark.parametrize("widths", [(8,), (6, 8)], ids=str)
def test_padding_to_one_class_of_widths_restores_identity(letters: Callable[..., Any], widths: tuple[int, ...]) -> None:
    target: dict[str, Any] = {"widths": widths, "max_rows": 8}
    assert TableModel(random_table(6), **target).capabilities.identity == "bitwise"
    for seed in range(20):
        drafted, plain = drafted_and_plain(letters, seed, 1, **target)
        assert drafted == plain


def test_no_decode_is_wider_than_the_widest_of_its_class(letters: Callable[..., Any]) -> None:
    """Widths beyond the class are no better than no class at all."""
    with pytest.raises(ValueError, match="widths"):
        TableModel(random_table(6), widths=(1, 2, 4), max_rows=8)
    for seed in range(20):
        drafted, plain = drafted_and_plain(letters, seed, 4, widths=(1, 2, 4), max_rows=4)
        assert drafted == plain


class Models:
    """The smaller models of a mode that needs none."""

    n_ctx = 100

    def draft(self, *, trees: bool) -> TextPath:
        raise AssertionError

    intermediate = draft


class HidingDrafter(Drafter):
    """Knows what comes, and hides it in a random tree, in any branch and to any depth."""

    name = "hiding"

    def __init__(self, truth: list[int], n_vocab: int, seed: int) -> None:
        self._truth = truth
        self._rng = np.random.default_rng(seed)
        self._n_vocab = n_vocab

    def draft(self, limit: int) -> Tree:
        tokens: list[int] = []
        parents: list[int] = []
        for node in range(int(self._rng.integers(0, limit + 1))):
            parent = int(self._rng.integers(-1, node))
            depth = 0 if parent < 0 else len(Tree(tuple(tokens), tuple(parents)).path_to(parent))
            place = len(self.text) + depth
            known = place < len(self._truth) and self._rng.random() < 0.6
            tokens.append(self._truth[place] if known else int(self._rng.integers(self._n_vocab)))
            parents.append(parent)
        return Tree(tuple(tokens), tuple(parents)) if tokens else EMPTY


class Careless(Drafter):
    """Drafts trees of any size, of any numbers, whatever it was asked for."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def draft(self, limit: int) -> Tree:
        n = int(self._rng.integers(0, 3 * limit + 1))
        parents = [int(self._rng.integers(-1, node)) if self._rng.random() < 0.5 else node - 1 for node in range(n)]
        return Tree(tuple(self._rng.integers(-3, 12, size=n).tolist()), tuple(parents))


def paths(tree: Tree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[above] for above in tree.path_to(node)) for node in range(len(tree))}


@pytest.mark.long
@given(st.data(), st.integers(0, 1 << 20), st.booleans())
@settings(max_examples=200)
def test_text_is_identical_with_drafts_that_cannot_be_decoded(
    cases: st.SearchStrategy[Any], data: st.DataObject, seed: int, takes_trees: bool
) -> None:
    case = dataclasses.replace(data.draw(cases), takes_trees=takes_trees)
    assert outcome(case.generation(drafter=Careless(seed))) == outcome(case.generation(drafts=False))


@given(st.integers(0, 1 << 20), st.integers(0, 9))
def test_what_is_left_of_a_draft_can_be_decoded(seed: int, limit: int) -> None:
    for takes_trees in (True, False):
        draft = Careless(seed).draft(limit)
        kept = draft.fitted(limit, 7, branches=takes_trees)
        assert len(kept) <= limit
        assert all(0 <= token < 7 for token in kept.tokens)
        assert kept.is_sequence or takes_trees
        assert paths(kept) <= paths(draft), "something was added"


@pytest.mark.long
@given(st.data(), st.integers(0, 1 << 20))
@settings(max_examples=200)
def test_text_is_identical_with_trees_of_any_shape(
    cases: st.SearchStrategy[Any], data: st.DataObject, seed: int
) -> None:
    case = data.draw(cases)
    plain = case.generation(drafts=False)
    expected = outcome(plain)
    drafter = HidingDrafter([*case.prompt, *plain.token_ids], case.n_vocab, seed)
    assert outcome(case.generation(drafter=drafter)) == expected
