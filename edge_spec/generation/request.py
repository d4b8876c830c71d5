"""What is asked of one reply, checked against the model."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from time import monotonic
from types import MappingProxyType
from typing import Any, Unpack

from edge_spec.arguments import refuse_unknown, require_whole
from edge_spec.errors import PromptError, SettingsError
from edge_spec.generation.text_stream import stops_of
from edge_spec.sampling import SamplerKeywords, SamplerSettings
from edge_spec.sampling.adjustments import Breakers, find_breakers
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.grammar import Grammar
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.sampling.lark import Lark
from edge_spec.tokens.tokenizer import Tokenizer

__all__ = [
    "Deadline",
    "ReplyOptions",
    "ReplyRequest",
    "ignore",
    "require_max_tokens",
    "require_timeout",
]


_BESIDE_SAMPLING = ("max_tokens", "stop", "ignore_eos", "grammar", "json_schema", "logprobs", "reuse", "tokens", "raw")
"""What else a reply may be asked for: meant, perhaps, where a name is not known."""


def require_max_tokens(value: object) -> None:
    """Refuse a token limit that is not one; None is no limit.

    Raises:
        SettingsError: it is not a whole number from 1.
    """
    if value is not None:
        require_whole("max_tokens", value, 1, 1 << 62)


def require_timeout(value: object) -> None:
    """Refuse a time limit that is not one; None is no limit.

    Raises:
        SettingsError: it is not a number of seconds above 0.
    """
    if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        raise SettingsError(
            f"is {value!r} and must be a number of seconds above 0",
            argument="timeout",
            hint="leave it out for no limit",
        )


def ignore(*event: object) -> None:
    """Do nothing: the default of callbacks."""


@dataclass(frozen=True, kw_only=True)
class ReplyRequest:
    """A prompt and how it is to be answered.

    Attributes:
        prompt: token ids.
        settings: of the sampler.
        max_tokens: the most tokens to write; as many as fit the context if None.
        stop: texts that end the reply.
        grammar: which replies are possible.
        breakers: what the DRY sampler does not look beyond, see ``find_breakers``.
        written: tokens of the reply that are there already; it continues after them.
        drawn: what ``Reply.drawn`` said after them.
        opening: what the prompt has written of the reply, such as the mark that opens a thought.
        logprobs: how many of the likeliest tokens events tell besides each token; None for no log probabilities.
        timeout: seconds after which it ends, waiting for its turn and reading the prompt included; None for no limit.
        on_notice: called with each sentence that the reader should see.
        on_progress: called with ``reading``, how many tokens of the prompt have been read, and how many have to be.

    Raises:
        PromptError: the prompt is empty. SettingsError: a limit or a stop string is not valid.
    """

    prompt: Sequence[int]
    settings: SamplerSettings
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    breakers: Breakers | None = None
    written: Sequence[int] = ()
    drawn: Mapping[str, float] = field(default_factory=dict)
    opening: str = ""
    logprobs: int | None = None
    timeout: float | None = None
    on_notice: Callable[[str], object] = ignore
    on_progress: Callable[[str, int, int], object] = ignore

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError("the prompt is empty", hint="give some text to continue")
        require_max_tokens(self.max_tokens)
        if self.logprobs is not None:
            require_whole("logprobs", self.logprobs, 0, 1000)
        require_timeout(self.timeout)
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "stop", stops_of(self.stop))


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

    @property
    def left_s(self) -> float | None:
        """The seconds that are left, more than 0; None if there is no end."""
        return max(self._over_at - monotonic(), 1e-9) if self._seconds is not None else None


class ReplyOptions:
    """Makes samplers' settings and grammars for a model. The last few grammars are remembered.

    Args:
        n_vocab: number of token ids.
        grammars: makes grammars; None if the model has none.
        sampling: what the model recommends; its fields of ``SamplerSettings`` are used where others are not given.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_vocab: int,
        grammars: Callable[[Lark], Grammar] | None,
        sampling: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._recommended = dict(sampling)
        self._grammars = lru_cache(4)(grammars) if grammars is not None else None
        self._breakers = lru_cache(4)(self._find_breakers)

    def request(
        self,
        tokens: Sequence[int],
        settings: SamplerSettings,
        *,
        stop: str | Sequence[str] | None = (),
        grammar: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> ReplyRequest:
        """A request; ``fields`` are further ones of ``ReplyRequest``.

        Raises:
            SettingsError: one of them, or the grammar, is not valid. PromptError: there are no tokens.
        """
        return ReplyRequest(
            prompt=tokens,
            settings=settings,
            stop=stops_of(stop),
            grammar=self.grammar(grammar, json_schema),
            breakers=self.breakers(settings),
            **fields,
        )

    def settings(
        self, *, seed: int | None = None, ignore_eos: bool = False, **sampling: Unpack[SamplerKeywords]
    ) -> SamplerSettings:
        """Settings of a sampler, with a random seed if none is given.

        Raises:
            SettingsError: a value out of its range, or an unknown name.
        """
        if ignore_eos:
            ends = (token for token in range(self._n_vocab) if self._tokenizer.ends(token))
            sampling["logit_bias"] = {**sampling.get("logit_bias", {}), **dict.fromkeys(ends, -math.inf)}
        refuse_unknown(sampling, (*(each.name for each in fields(SamplerSettings)), *_BESIDE_SAMPLING))
        seed = secrets.randbits(32) if seed is None else seed
        settings = SamplerSettings.of({"seed": seed, **SamplerSettings.valid(self._recommended), **sampling})
        outside = next((token for token in settings.logit_bias if token >= self._n_vocab), None)
        if outside is not None:
            raise SettingsError(
                f"names token {outside}, but this model has {self._n_vocab} tokens", argument="logit_bias"
            )
        return settings

    def grammar(self, text: str | None, schema: str | Mapping[str, Any] | None) -> Grammar | None:
        """The grammar that one of them describes, see ``TextModel.generate``; None if neither is given.

        Raises:
            SettingsError: both are given, one of them is not valid, or the model has no grammars.
        """
        if text is None and schema is None:
            return None
        if text is not None and schema is not None:
            raise SettingsError("`grammar` and `json_schema` are both given", hint="give one of them")
        if self._grammars is None:
            raise SettingsError("this model does not support grammars", hint="leave the grammar out")
        if schema is not None:
            return self._grammars(schema_to_lark(schema))
        if not isinstance(text, str):
            raise SettingsError(f"is not a text but {type(text).__name__}", argument="grammar", hint="write it in GBNF")
        return self._grammars(text if isinstance(text, Lark) else gbnf_to_lark(text))

    def breakers(self, settings: SamplerSettings) -> Breakers | None:
        """What the DRY sampler does not look beyond; None where it is off."""
        return self._breakers(settings.dry_breakers) if settings.uses_dry else None

    def _find_breakers(self, strings: tuple[str, ...]) -> Breakers:
        names = map(self._tokenizer.name, range(self._n_vocab))
        return find_breakers(strings, names, lambda text: self._tokenizer.tokenize(text, add_special=False))
