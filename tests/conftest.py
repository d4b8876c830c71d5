"""What the laws are tried on: the demo family, loaded once, and random worlds of table models."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from lone_replies import lone_reply

from edge_spec.engines.llama.context import LlamaModel
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.table import TableModel, random_table
from edge_spec.generation.reply import Reply
from edge_spec.models import inspect, resolve_family
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.modes import guided
from edge_spec.speculation.policy import FixedPolicy
from edge_spec.speculation.round import Round

# The same examples on every machine and in every run, however slow it is.
settings.register_profile(
    "laws", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("laws")

LETTERS = (b"a", b"b", b"\xc3", b"\xbc", b"cd", b"", b"b a")
"""What tokens of a table model stand for: among them halves of a character, and nothing."""


class Letters:
    """A vocabulary for table models; ``end`` ends a reply, -1 for none."""

    def __init__(self, end: int = -1) -> None:
        self.end = end

    def token_bytes(self, token: int) -> bytes:
        return LETTERS[token]

    def ends(self, token: int) -> bool:
        return token == self.end


class LetterGrammar:
    """A random automaton over the tokens of a table model; ``end`` may come in some of its states.

    Of its states some leave no choice. There is always something that may come.
    """

    def __init__(self, seed: int, n_vocab: int, end: int) -> None:
        chance = random.Random(seed)
        self.end = end
        self.next = []
        for _ in range(5):
            n = chance.choice([1, 1, 2, n_vocab])
            self.next.append({token: chance.randrange(5) for token in chance.sample(range(n_vocab), n)})

    def start(self) -> LetterState:
        return LetterState(self, 0)

    def takes(self, tokens: list[int]) -> bool:
        """Whether a reply may be these tokens, or begin with them."""
        state: LetterState | None = self.start()
        for token in tokens:
            if state is None or not state.allowed([token])[0]:
                return False
            state = state.after(token)
        return True


class LetterState:
    """A state of a ``LetterGrammar``."""

    def __init__(self, grammar: LetterGrammar, place: int) -> None:
        self.grammar = grammar
        self.place = place

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        return [token in self.grammar.next[self.place] for token in tokens]

    def after(self, token: int) -> LetterState | None:
        assert self.allowed([token])[0], "llama.cpp would abort"
        return None if token == self.grammar.end else LetterState(self.grammar, self.grammar.next[self.place][token])

    def forced(self, most: int) -> list[int]:
        tokens: list[int] = []
        place = self.place
        while len(tokens) < most and len(self.grammar.next[place]) == 1:
            ((token, place),) = self.grammar.next[place].items()
            tokens.append(token)
            if token == self.grammar.end:
                break
        return tokens

    def learn(self, token: int) -> None:
        """Tokens are letters; there is one way to cut them."""


class RandomChoices(AdaptivePolicy):
    """An adaptive policy that decides at random: drafter, length, trials, and whether to draft at all."""

    def __init__(self, seed: int) -> None:
        super().__init__(seconds={1: 1.0, 8: 2.0})
        self._seed = seed
        self._n_rounds = 0
        self._random = random.Random(seed)

    def limit(self) -> int:
        return self._random.randint(0, self.most)

    @property
    def plain_gain(self) -> float:
        # Asked first for every draft: a draft that is asked for twice is the same twice.
        self._random.seed(f"{self._seed} {self._n_rounds}")
        return 0.0

    def learn(self, done: Round) -> None:
        self._n_rounds += 1

    def best_length(self, chances: Sequence[float]) -> tuple[int, float]:
        return self._random.randint(0, len(chances)), self._random.uniform(-1, 1)

    def is_worth_more(self, offer: Offer, reached: float, n: int) -> bool:
        return self._random.random() < 0.7

    def expected_gain(self, offer: Offer) -> float:
        return self._random.uniform(-1, 1)

    def may_try(self, offer: Offer) -> bool:
        return self._random.random() < 0.2


class RandomLimits:
    """A policy that draws the limit of every round."""

    def __init__(self, seed: int, most: int = 9) -> None:
        self._random = random.Random(seed)
        self._most = most

    def limit(self) -> int:
        return self._random.randint(0, self._most)

    def learn(self, done: Round) -> None:
        """Learns nothing."""


@dataclass
class Case:
    """A random world: a target, a recipe for a drafter, and what is asked for.

    Every call of ``speculator`` builds models of its own; those of the drafter are then in ``models``. The
    speculator of the latest reply is ``last``.
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
    models: list[TableModel] = field(default_factory=list)
    parts: list[Drafter] = field(default_factory=list)
    last: Any = None

    def table(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random_table(self.n_vocab, order=self.order, seed=self.seed)

    def target(self) -> TableModel:
        return TableModel(
            self.table(),
            n_ctx=self.n_ctx,
            max_rows=self.max_rows,
            keeps_branches=self.keeps_branches,
            takes_trees=self.takes_trees,
        )

    def speculator(self, *, drafts: bool = True) -> Speculator:
        self.models, self.parts = [], []
        return Speculator(self.target(), guided(self._build(self.recipe)) if drafts else NoDrafter())

    def generation(self, *, drafts: bool = True, drafter: Drafter | None = None) -> Reply:
        self.last = Speculator(self.target(), guided(drafter)) if drafter else self.speculator(drafts=drafts)
        return lone_reply(
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
            drafter = AdaptiveDrafter([self._build(part) for part in rest], RandomChoices(self.seed))
        elif kind == "model":
            width, depth, min_value, model = rest
            drafter = ModelDrafter(self._model(model), width=width, depth=depth, min_value=min_value)
        else:
            leaf, leaf_limit, model = rest
            drafter = HierarchyDrafter(guided(self._build(leaf)), self._model(model), policy=FixedPolicy(leaf_limit))
        self.parts.append(drafter)
        return drafter

    def _model(self, facts: tuple[float, bool, int, int]) -> TableModel:
        scale, keeps_branches, max_rows, less = facts
        like = random_table(
            self.n_vocab, order=self.order, seed=self.seed + 1 + len(self.models), scale=scale, like=self.table()
        )
        n_ctx = max(len(self.prompt), self.n_ctx - less)
        model = TableModel(like, n_ctx=n_ctx, max_rows=max_rows, keeps_branches=keeps_branches)
        self.models.append(model)
        return model


def _recipes() -> st.SearchStrategy[tuple[Any, ...]]:
    model = st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 3.0]), st.booleans(), st.sampled_from([2, 3, 8, 64]), st.sampled_from([0, 0, 7])
    )
    chain = st.tuples(st.just("model"), st.just(1), st.just(1), st.sampled_from([0.0, 0.1]), model)
    tree = st.tuples(st.just("model"), st.integers(2, 5), st.integers(1, 5), st.sampled_from([0.0, 0.1]), model)
    ngram = st.tuples(st.just("ngram"), st.integers(1, 2), st.integers(2, 4))
    leaf = st.one_of(chain, tree, ngram, st.just(("off",)))
    hierarchy = st.tuples(st.just("hierarchy"), leaf, st.integers(0, 5), model)
    nested = st.tuples(st.just("hierarchy"), hierarchy, st.integers(0, 5), model)
    choice = st.tuples(st.just("choice"), chain, ngram, hierarchy)
    return st.one_of(tree, chain, ngram, hierarchy, nested, choice)


@st.composite
def _samplings(draw: st.DrawFn, n_vocab: int) -> SamplerSettings:
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
def _cases(draw: st.DrawFn) -> Case:
    n_vocab = draw(st.integers(3, len(LETTERS)))
    prompt = draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=12))
    return Case(
        seed=draw(st.integers(0, 1 << 20)),
        n_vocab=n_vocab,
        order=draw(st.integers(0, 2)),
        recipe=draw(_recipes()),
        sampling=draw(_samplings(n_vocab)),
        prompt=prompt,
        n_ctx=len(prompt) + draw(st.sampled_from([40, 40, 40, 9, 4, 1])),
        max_rows=draw(st.sampled_from([64, 16, 5, 3, 2, 1])),
        keeps_branches=draw(st.booleans()),
        max_tokens=draw(st.sampled_from([None, None, None, 24, 3, 1])),
        stop=draw(st.sampled_from([(), (), (), ("bab",), ("üa", "bbb"), ("\ufffdb", "cdcd")])),
        end=draw(st.integers(-2 * n_vocab, n_vocab - 1)),
        constrained=draw(st.sampled_from([False, False, True])),
    )


@pytest.fixture(scope="session")
def cases() -> st.SearchStrategy[Case]:
    """Random worlds, to be drawn from."""
    return _cases()


@pytest.fixture(scope="session")
def letters() -> type[Letters]:
    """The vocabulary of table models."""
    return Letters


@pytest.fixture(scope="session")
def letter_grammar() -> type[LetterGrammar]:
    """A random grammar over the vocabulary of table models."""
    return LetterGrammar


@pytest.fixture(scope="session")
def random_limits() -> type[RandomLimits]:
    """A policy that draws the limit of every round."""
    return RandomLimits


@pytest.fixture(scope="session")
def probe_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where probe results are kept, for this run of the tests only."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def weights() -> Iterator[Callable[[str], LlamaWeights]]:
    """The demo family's weights by role (target, intermediate, draft), loaded when first asked for."""
    loaded: dict[str, LlamaWeights] = {}

    def load(role: str) -> LlamaWeights:
        if role not in loaded:
            loaded[role] = LlamaWeights(getattr(resolve_family("demo"), role))
        return loaded[role]

    yield load
    for each in loaded.values():
        each.close()


@pytest.fixture(scope="session")
def open_demo(weights: Callable[[str], LlamaWeights], probe_cache: Path) -> Iterator[Callable[..., LlamaModel]]:
    """Opens a context over a demo model, the same one for the same settings; it may hold an earlier text."""
    opened: dict[Any, LlamaModel] = {}

    def open_it(role: str = "target", *, fresh: bool = False, **values: Any) -> LlamaModel:
        key = (role, len(opened) if fresh else -1, tuple(sorted(values.items())))
        if key not in opened:
            values = {"n_ctx": 640, "n_threads": 1} | values
            file = inspect(getattr(resolve_family("demo"), role)).fingerprint
            opened[key] = open_llama(weights(role), LlamaSettings(**values), file=file, cache_dir=probe_cache)[0]
        return opened[key]

    yield open_it
    for model in opened.values():
        model.close()


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Texts to go on with, of different kinds and lengths."""
    return [
        "Once upon a time",
        "Can you help me find a table for two in the old town, please?",
        "def area(width, height):\n    return",
        "The capital of France is Paris. The capital of Italy is Rome. The capital of",
        "Zwölf Boxkämpfer — 東京 🙂",
        "A",
    ]


@pytest.fixture(scope="session")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose caches are a folder of this run of the tests."""
    home = str(tmp_path_factory.mktemp("home"))
    return {**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "LOCALAPPDATA": home}
