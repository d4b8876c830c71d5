"""What is asked of one reply, checked against the model."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from time import monotonic
from types import MappingProxyType
from typing import Any

from edge_spec.errors import PromptError, Sentence, SettingsError
from edge_spec.generation.options import ReplyOptions
from edge_spec.generation.tools.calls import CallReading
from edge_spec.generation.tools.functions import Tool, callable_functions
from edge_spec.generation.tools.grammar import answer_grammar, schema_of
from edge_spec.generation.tools.syntax import HERMES, syntax_of
from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.adjustments import Breakers, find_breakers
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.grammar import Grammar
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.sampling.lark import Lark
from edge_spec.tokens.tokenizer import Tokenizer

__all__ = ["Deadline", "ReplyRequest", "RequestBuilder"]


@dataclass(frozen=True, kw_only=True)
class ReplyRequest:
    """A prompt and how it is to be answered.

    Attributes:
        prompt: token ids.
        settings: of the sampler.
        options: what else is asked for.
        grammar: which replies are possible.
        breakers: what the DRY sampler does not look beyond, see ``find_breakers``.
        written: tokens of the reply that are there already; it continues after them.
        drawn: what ``Reply.drawn`` said after them.
        opening: what the prompt has written of the reply, such as the mark that opens a thought.
        reading: how calls are read off the reply.
        notices: sentences about the request that the reader should see.

    Raises:
        PromptError: the prompt is empty.
    """

    prompt: Sequence[int]
    settings: SamplerSettings
    options: ReplyOptions = field(default_factory=ReplyOptions)
    grammar: Grammar | None = None
    breakers: Breakers | None = None
    written: Sequence[int] = ()
    drawn: Mapping[str, float] = field(default_factory=dict)
    opening: str = ""
    reading: CallReading = field(default_factory=CallReading)
    notices: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError("the prompt is empty", hint="give some text to continue")
        object.__setattr__(self, "prompt", tuple(self.prompt))

    def call_id(self, number: int) -> str:
        """Return the id of a call in the reply: the same whenever it is asked for, and another one after every prompt
        and for every draw."""
        drawn = f"{self.settings.seed} {self.settings.attempt} {number} {' '.join(map(str, self.prompt))}"
        return f"call_{blake2b(drawn.encode(), digest_size=12).hexdigest()}"


class Deadline:
    """When a reply has to end.

    Args:
        seconds: so long after ``start``; None for never.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._over_at = math.inf

    def start(self) -> None:
        """Start the clock, unless it runs."""
        if self._seconds is not None and self._over_at == math.inf:
            self._over_at = monotonic() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._seconds is not None and monotonic() >= self._over_at


class RequestBuilder:
    """Makes samplers' settings and grammars for a model. The last few grammars are remembered.

    Args:
        n_vocab: number of token ids.
        grammars: makes grammars; None if the model has none.
        template: the model's chat template; empty if it has none.
        sampling: what the model recommends; its fields of ``SamplerSettings`` are used where others are not given.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_vocab: int,
        grammars: Callable[[Lark], Grammar] | None,
        sampling: Mapping[str, Any] = MappingProxyType({}),
        template: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._recommended = dict(sampling)
        self._template = template
        self._constraints = lru_cache(4)(self._constraint)
        self._grammars = lru_cache(4)(grammars) if grammars is not None else None
        self._breakers = lru_cache(4)(self._find_breakers)

    def request(
        self,
        tokens: Sequence[int],
        options: ReplyOptions,
        settings: SamplerSettings | None,
        *,
        opening: str = "",
        **state: Any,
    ) -> ReplyRequest:
        """Return a request; ``state`` are further fields of it.

        Args:
            settings: of the sampler; if None what ``options`` say.
            opening: what the prompt has written of the reply.

        Raises:
            SettingsError: the grammar is not valid. PromptError: there are no tokens.
        """
        settings = settings or self.settings(options)
        grammar, reading, notices = self.constrained(options, opening)
        return ReplyRequest(
            prompt=tokens,
            settings=settings,
            options=options,
            grammar=grammar,
            breakers=self.breakers(settings),
            opening=opening,
            reading=reading,
            notices=notices,
            **state,
        )

    def settings(self, options: ReplyOptions) -> SamplerSettings:
        """Return settings of a sampler, with a random seed if none is given.

        Raises:
            SettingsError: a token id that the model does not have.
        """
        sampling = {**SamplerSettings.valid(self._recommended), **options.sampling}
        if options.ignore_eos:
            sampling["logit_bias"] = {**sampling.get("logit_bias", {}), **self._no_ends}
        seed = secrets.randbits(32) if options.seed is None else options.seed
        settings = SamplerSettings.of({**sampling, "seed": seed, "attempt": options.attempt})
        outside = next((token for token in settings.logit_bias if token >= self._n_vocab), None)
        if outside is not None:
            raise SettingsError(
                f"names token {outside}, but this model has {self._n_vocab} tokens", argument="logit_bias"
            )
        return settings

    def constrained(self, options: ReplyOptions, opening: str) -> tuple[Grammar | None, CallReading, Sequence[str]]:
        """Return the grammar of a reply, how its calls are read, and what is to be told of their schemas.

        A grammar is that of the answer: a thought that the prompt has opened comes before it, unless it is ``raw``.

        Args:
            opening: what the prompt has written of the reply.

        Raises:
            SettingsError: what may be written cannot be kept, or the model has no grammars.
        """
        _, functions = callable_functions(options.tools, options.tool_choice)
        if functions and options.grammar is not None:
            raise SettingsError(Sentence("{grammar} and {tools} are both given"), hint="give one of them")
        lark, reading = _lark(options.grammar, options.json_schema), CallReading()
        notices: Sequence[str] = ()
        if lark is None and not functions:
            return None, reading, notices
        if functions or not options.raw:
            lark, reading, notices = self._constraints(
                json.dumps([asdict(function) for function in functions]),
                lark,
                opening,
                required=options.tool_choice != "auto",
                several=options.parallel_tool_calls,
            )
        if self._grammars is None:
            what, hint = (
                ("tools", Sentence("leave {tools} out")) if functions else ("grammars", "leave the grammar out")
            )
            raise SettingsError(f"this model does not support {what}", hint=hint)
        return self._grammars(lark), reading, notices

    def _constraint(
        self, functions: str, answer: Lark | None, opening: str, *, required: bool, several: bool
    ) -> tuple[Lark, CallReading, Sequence[str]]:
        """Return the grammar of a reply that may call functions, how its calls are read, and what is to be told."""
        made, notices = [Tool(**values) for values in json.loads(functions)], list[str]()
        syntax = syntax_of(self._template) or HERMES
        lark = answer_grammar(
            made,
            syntax,
            template=self._template,
            opening=opening,
            required=required,
            several=several,
            answer=answer,
            on_notice=notices.append,
        )
        assert lark is not None
        schemas = {function.name: schema_of(function) for function in made}
        reading = CallReading(syntax=syntax, schemas=schemas, alone=answer is not None) if made else CallReading()
        return lark, reading, tuple(notices)

    def breakers(self, settings: SamplerSettings) -> Breakers | None:
        """Return what the DRY sampler does not look beyond; None where it is off."""
        return self._breakers(settings.dry_breakers) if settings.uses_dry else None

    @cached_property
    def _no_ends(self) -> Mapping[int, float]:
        """Logit biases with which no reply ends."""
        ends = (token for token in range(self._n_vocab) if self._tokenizer.ends(token))
        return dict.fromkeys(ends, -math.inf)

    def _find_breakers(self, strings: tuple[str, ...]) -> Breakers:
        names = map(self._tokenizer.name, range(self._n_vocab))
        return find_breakers(strings, names, lambda text: self._tokenizer.tokenize(text, add_special=False))


def _lark(text: str | None, schema: str | Mapping[str, Any] | None) -> Lark | None:
    """Return the grammar that one of them describes, see ``TextModel.generate``; None if neither is given."""
    if text is None and schema is None:
        return None
    if text is not None and schema is not None:
        raise SettingsError(Sentence("{grammar} and {json_schema} are both given"), hint="give one of them")
    if schema is not None:
        return schema_to_lark(schema)
    if not isinstance(text, str):
        raise SettingsError(f"is not a text but {type(text).__name__}", argument="grammar", hint="write it in GBNF")
    return text if isinstance(text, Lark) else gbnf_to_lark(text)
