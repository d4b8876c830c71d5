"""Random worlds of table models: targets, drafters, settings and what is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from letter_vocabulary import LETTERS, LetterGrammar, Letters
from random_choices import RandomChoices, RandomLimits
from speculator_replies import reply_of

from edge_spec.generation.reply import Reply
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.loop import Slot
from edge_spec.testing import TableModel, random_table


@dataclass
class Case:
    """A random world: a target, a recipe for a drafter, and what is asked for.

    Every call of ``speculator`` builds models of its own; those of the drafter are then in ``models``. The
    speculator of the latest reply is ``last``. Of a ``recurrent`` world the target knows the text before the last rows
    of a decode, its drafters what they held, and all of them take sequences only.
    """

    seed: int
    n_vocab: int
    order: int
    recipe: tuple[Any, ...]
    sampling: SamplerSettings
    prompt: list[int]
    n_ctx: int
    max_rows: int
    keeps_branches: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    end: int
    constrained: bool
    takes_trees: bool = True
    recurrent: bool = False
    models: list[TableModel] = field(default_factory=list)
    parts: list[Drafter] = field(default_factory=list)
    last: Any = None

    def table(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random_table(self.n_vocab, order=self.order, seed=self.seed)

    def target(self) -> TableModel:
        if self.recurrent:
            most = self.max_rows
            return TableModel(
                self.table(),
                n_ctx=self.n_ctx,
                max_rows=most,
                widths=tuple(sorted({min(2, most), most})),
                takes_trees=False,
                n_snapshots=most - 1,
            )
        return TableModel(
            self.table(),
            n_ctx=self.n_ctx,
            max_rows=self.max_rows,
            keeps_branches=self.keeps_branches,
            takes_trees=self.takes_trees,
        )

    def speculator(self, *, drafts: bool = True) -> Slot:
        self.models, self.parts = [], []
        return Slot(self.target(), self._build(self.recipe) if drafts else NoDrafter())

    def generation(self, *, drafts: bool = True, drafter: Drafter | None = None) -> Reply:
        self.last = Slot(self.target(), drafter) if drafter else self.speculator(drafts=drafts)
        return reply_of(
            self.last,
            RandomLimits(self.seed),
            Letters(self.end),
            self.prompt,
            self.sampling,
            max_tokens=self.max_tokens,
            stop=self.stop,
            grammar=self.grammar(),
        )

    def grammar(self) -> LetterGrammar | None:
        return LetterGrammar(self.seed, self.n_vocab, self.end) if self.constrained else None

    def _build(self, recipe: tuple[Any, ...]) -> Drafter:
        kind, *rest = recipe
        drafter: Drafter
        if kind == "off":
            drafter = NoDrafter()
        elif kind == "ngram":
            drafter = NgramDrafter(longest=rest[1], shortest=rest[0])
        elif kind == "choice":
            drafter = RandomChoices([self._build(part) for part in rest], self.seed)
        elif kind == "shared":
            model, width, intermediate = rest
            width = 1 if self.recurrent else width
            part = self._build(model)
            leaf = RandomChoices([part, NgramDrafter()], self.seed + 1)
            hierarchy = HierarchyDrafter(leaf, self._model(intermediate), leaf_limit=5, width=width)
            offers = [hierarchy, LeafDrafter(hierarchy, part), NgramDrafter()]
            drafter = RandomChoices(offers, self.seed)
        elif kind == "model":
            width, beam, depth, min_value, model = rest
            width, beam = (1, 1) if self.recurrent else (width, beam)
            drafter = ModelDrafter(self._model(model), width=width, beam=beam, depth=depth, min_value=min_value)
        else:
            leaf, leaf_limit, model = rest
            drafter = HierarchyDrafter(self._build(leaf), self._model(model), leaf_limit=leaf_limit)
        self.parts.append(drafter)
        return drafter

    def _model(self, facts: tuple[float, bool, int, int]) -> TableModel:
        scale, keeps_branches, max_rows, less = facts
        like = random_table(
            self.n_vocab, order=self.order, seed=self.seed + 1 + len(self.models), scale=scale, like=self.table()
        )
        n_ctx = max(len(self.prompt), self.n_ctx - less)
        if self.recurrent:
            model = TableModel(
                like, n_ctx=n_ctx, max_rows=max_rows, takes_trees=False, n_snapshots=0, rollback=ANYWHERE
            )
        else:
            model = TableModel(like, n_ctx=n_ctx, max_rows=max_rows, keeps_branches=keeps_branches)
        self.models.append(model)
        return model


def recipes() -> st.SearchStrategy[tuple[Any, ...]]:
    model = st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 3.0]), st.booleans(), st.sampled_from([2, 3, 8, 64]), st.sampled_from([0, 0, 7])
    )
    least = st.sampled_from([0.0, 0.1])
    chain = st.tuples(st.just("model"), st.just(1), st.just(1), st.just(1), least, model)
    tree = st.tuples(st.just("model"), st.integers(2, 5), st.integers(1, 5), st.integers(1, 5), least, model)
    ngram = st.tuples(st.just("ngram"), st.integers(1, 2), st.integers(2, 4))
    leaf = st.one_of(chain, tree, ngram, st.just(("off",)))
    hierarchy = st.tuples(st.just("hierarchy"), leaf, st.integers(0, 5), model)
    nested = st.tuples(st.just("hierarchy"), hierarchy, st.integers(0, 5), model)
    choice = st.tuples(st.just("choice"), st.one_of(chain, tree), ngram, hierarchy)
    shared = st.tuples(st.just("shared"), st.one_of(chain, tree), st.integers(1, 3), model)
    return st.one_of(tree, chain, ngram, hierarchy, nested, choice, shared)


@st.composite
def samplings(draw: st.DrawFn, n_vocab: int) -> SamplerSettings:
    values: dict[str, Any] = {"seed": draw(st.integers(0, 2**64 - 1)), "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    values["temperature"] = draw(st.sampled_from([0.0, 0.7, 1.0, 1.5]))
    if draw(st.booleans()):
        values |= draw(
            st.sampled_from([{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}, {"top_n_sigma": 1.0}])
        )
    if draw(st.booleans()):
        values |= {
            "repeat_penalty": draw(st.sampled_from([1.0, 1.3, 0.8])),
            "frequency_penalty": draw(st.sampled_from([0.0, 0.4])),
            "presence_penalty": draw(st.sampled_from([0.0, -0.3])),
            "penalty_window": draw(st.sampled_from([-1, 1, 5])),
        }
    if draw(st.booleans()):
        biases = st.one_of(st.floats(-3, 3), st.just(float("-inf")))
        values["logit_bias"] = draw(st.dictionaries(st.integers(0, n_vocab - 1), biases, max_size=2))
    extras = [
        {},
        {},
        {},
        {"dry_multiplier": 0.9, "dry_allowed_length": 1},
        {"xtc_probability": 0.6},
        {"mirostat": 2, "mirostat_tau": 1.2, "mirostat_eta": 0.4},
    ]
    return SamplerSettings(**values, **draw(st.sampled_from(extras)))


@st.composite
def random_cases(draw: st.DrawFn) -> Case:
    n_vocab = draw(st.integers(3, len(LETTERS)))
    prompt = draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=12))
    return Case(
        seed=draw(st.integers(0, 1 << 20)),
        n_vocab=n_vocab,
        order=draw(st.integers(0, 2)),
        recipe=draw(recipes()),
        sampling=draw(samplings(n_vocab)),
        prompt=prompt,
        n_ctx=len(prompt) + draw(st.sampled_from([40, 40, 40, 9, 4, 1])),
        max_rows=draw(st.sampled_from([64, 16, 5, 3, 2, 1])),
        keeps_branches=draw(st.booleans()),
        max_tokens=draw(st.sampled_from([None, None, None, 24, 3, 1])),
        stop=draw(st.sampled_from([(), (), (), ("bab",), ("üa", "bbb"), ("\ufffdb", "cdcd")])),
        end=draw(st.integers(-2 * n_vocab, n_vocab - 1)),
        constrained=draw(st.sampled_from([False, False, True])),
    )
