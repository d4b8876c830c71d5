"""The settings of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Annotated, Any, TypedDict

from edge_spec.errors import SettingsError
from edge_spec.options import (
    Option,
    has_kind,
    options_of,
    own_number,
    refuse_unknown,
    require_in_range,
    written,
)

__all__ = ["SAMPLER_OPTIONS", "SamplerKeywords", "SamplerSettings"]

_LARGEST = 1e9
"""The largest penalty or bias: beyond it float32 would lose the logit, or overflow."""


class SamplerKeywords(TypedDict, total=False):
    """The settings of sampling: fields of ``SamplerSettings`` without the seed and the attempt."""

    temperature: Annotated[float, Option("Divides the logits; 0 takes the best token.", at_least=0, short="--temp")]
    top_k: Annotated[int, Option("Keep the k best tokens; 0 for all.", at_least=0)]
    top_p: Annotated[float, Option("Keep the likeliest tokens up to this mass; 1 for all.", above=0, at_most=1)]
    min_p: Annotated[
        float, Option("Keep tokens at least this likely relative to the best; 0 for all.", at_least=0, at_most=1)
    ]
    typical_p: Annotated[float, Option("Keep the most typical tokens up to this mass; 1 for all.", above=0, at_most=1)]
    top_n_sigma: Annotated[float, Option("Keep logits within this many standard deviations of the best; 0 for all.")]
    repeat_penalty: Annotated[
        float, Option("Divides the logits of recent tokens; 1 for none.", at_least=1 / _LARGEST, at_most=_LARGEST)
    ]
    frequency_penalty: Annotated[
        float, Option("Subtracted from a recent token's logit per occurrence.", at_least=-_LARGEST, at_most=_LARGEST)
    ]
    presence_penalty: Annotated[
        float, Option("Subtracted from a recent token's logit once.", at_least=-_LARGEST, at_most=_LARGEST)
    ]
    penalty_window: Annotated[int, Option("How many tokens are recent; -1 for all, 0 for none.", at_least=-1)]
    logit_bias: Annotated[Mapping[int, float], Option("Added to a token's logit; -inf forbids it.", shown="none")]
    dry_multiplier: Annotated[
        float,
        Option("Strength of DRY, which penalizes continuing a repetition; 0 for none.", at_least=0, at_most=_LARGEST),
    ]
    dry_base: Annotated[float, Option("Growth of DRY per repeated token.", at_least=1, at_most=_LARGEST)]
    dry_allowed_length: Annotated[int, Option("Repetitions shorter than this are free.", at_least=1)]
    dry_penalty_window: Annotated[int, Option("How many tokens DRY looks back; -1 for all, 0 for none.", at_least=-1)]
    dry_breakers: Annotated[Sequence[str], Option("A text beyond which DRY does not look back.", flag="--dry-breaker")]
    xtc_probability: Annotated[
        float, Option("Probability of XTC, which excludes the top choices; 0 for none.", at_least=0, at_most=1)
    ]
    xtc_threshold: Annotated[float, Option("Tokens at least this likely are top choices.", above=0, at_most=1)]
    mirostat: Annotated[
        int, Option("2 for mirostat v2 instead of top-n-sigma to XTC; 0 for none.", at_least=0, at_most=2)
    ]
    mirostat_tau: Annotated[
        float, Option("The surprise that mirostat aims at, in bits per token.", above=0, at_most=_LARGEST)
    ]
    mirostat_eta: Annotated[float, Option("How fast mirostat adapts.", at_least=0, at_most=_LARGEST)]


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The distribution from which tokens are drawn, and the seed of the draw. Defaults are llama.cpp's.

    The transforms are applied in this order, which is llama.cpp's too:

    1. ``logit_bias``: added to the logits; ``-inf`` forbids a token.
    2. Penalties over the last ``penalty_window`` tokens of prompt and reply (0: none, -1: all of them):
       ``repeat_penalty`` divides positive logits and multiplies negative ones, ``frequency_penalty`` is
       subtracted once per occurrence, ``presence_penalty`` once.
    3. DRY, on unless ``dry_multiplier`` is 0: a token that would continue a repetition of n tokens within the last
       ``dry_penalty_window`` ones (0: none, -1: all) loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)``
       once n reaches ``dry_allowed_length``; no repetition reaches back beyond a text of ``dry_breakers``.
    4. ``top_n_sigma``: keep logits within that many standard deviations of the best (off at or below 0).
    5. ``top_k``: keep the k best (off at 0).
    6. ``typical_p``: keep the most typical tokens up to that mass (off at 1).
    7. ``top_p``: keep the likeliest tokens up to that mass (off at 1).
    8. ``min_p``: keep tokens at least that likely relative to the best (off at 0).
    9. XTC: with probability ``xtc_probability`` (off at 0), remove all tokens that have ``xtc_threshold`` or more but
       the least likely of them.
    10. ``temperature``: divides the logits; 0 takes the best token, the lowest id among equals.

    ``mirostat=2`` replaces 4 to 9, after temperature: keep tokens whose surprise is at most mu bits; mu starts at
    ``2 * mirostat_tau`` and moves by ``mirostat_eta`` times the difference between ``mirostat_tau`` and the surprise
    of each token. A grammar comes before everything.

    At least one token always stays. ``seed`` picks the noise, ``attempt`` counts retries of the same prompt. A negative
    seed equals the unsigned seed with the same 64 bits, since other programs have signed seeds.

    Differences from llama.cpp: the lowest id comes first among equal logits, where llama.cpp's order depends on its
    sort; masses are float64; tokens that are already removed do not count for ``typical_p``, where llama.cpp's
    entropy becomes NaN; ``penalty_window=-1`` is the whole text; penalties and DRY apply with mirostat as well;
    temperature 0 takes the best token whatever mirostat and XTC would do.

    Raises:
        SettingsError: a value out of its range, or of the wrong type.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_window: int = 64
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        def require(name: str, good: bool, wanted: str, hint: str = "") -> None:
            if not good:
                raise SettingsError(f"is {written(getattr(self, name))} and must be {wanted}", argument=name, hint=hint)

        require_in_range(SAMPLER_OPTIONS, self)
        require("mirostat", self.mirostat != 1, "0 (off) or 2")
        for name in ("seed", "attempt"):
            require(name, has_kind(getattr(self, name), Integral), "a whole number")
            object.__setattr__(self, name, own_number(getattr(self, name)))
        hint = "leave it out for a random one"
        require("seed", -(1 << 63) <= self.seed < 1 << 64, "from -2**63 to 2**64 - 1", hint)
        object.__setattr__(self, "seed", self.seed % (1 << 64))
        require("attempt", 0 <= self.attempt < 1 << 64, "from 0 to 2**64 - 1")
        wanted = "a list of texts of at least one character"
        require("dry_breakers", isinstance(self.dry_breakers, list | tuple), wanted)
        require("dry_breakers", all(isinstance(x, str) and x for x in self.dry_breakers), wanted)
        object.__setattr__(self, "dry_breakers", tuple(self.dry_breakers))
        require("logit_bias", isinstance(self.logit_bias, Mapping), "a map from token ids to biases")
        for token, bias in self.logit_bias.items():
            if not has_kind(token, Integral) or not 0 <= token < 1 << 31:
                raise SettingsError(f"is for {written(token)} and must be for token ids", argument="logit_bias")
            if not has_kind(bias, Real) or not (bias == -math.inf or abs(bias) <= _LARGEST):
                wanted = f"from {-_LARGEST:g} to {_LARGEST:g}, or -inf to forbid the token"
                raise SettingsError(f"is {written(bias)} for token {token} and must be {wanted}", argument="logit_bias")
        biases = {own_number(token): own_number(bias) for token, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", MappingProxyType(biases))

    def to_json(self) -> dict[str, Any]:
        """Return all settings as plain values for JSON."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "logit_bias": {str(token): bias for token, bias in self.logit_bias.items()},
            "dry_breakers": list(self.dry_breakers),
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SamplerSettings:
        """Settings from names and values, such as keyword arguments; unknown names are errors."""
        refuse_unknown(values, (each.name for each in fields(cls)))
        return cls(**values)

    @classmethod
    def valid(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid ones of some values: the recommendations of a file may be damaged."""
        kept = {}
        for name, value in values.items():
            with suppress(SettingsError):
                cls.of({name: value})
                kept[name] = value
        return kept

    @property
    def uses_penalties(self) -> bool:
        """Whether the tokens so far change the distribution."""
        return self.penalty_window != 0 and (
            self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        )

    @property
    def uses_dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_window != 0

    @property
    def uses_xtc(self) -> bool:
        """Whether XTC is on; above 0.5 at most one token reaches the threshold, and it stays."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def uses_mirostat(self) -> bool:
        """Whether mirostat replaces the filters."""
        return self.mirostat == 2 and self.temperature > 0


SAMPLER_OPTIONS = options_of(SamplerKeywords, SamplerSettings)
"""By name; ``TextModel.generate`` takes the seed and the attempt beside them."""
