"""What a user can ask of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, TypedDict

from edge_spec.errors import SettingsError

__all__ = ["SamplerKeywords", "SamplerSettings"]

_LARGEST = 1e9
"""No penalty or bias is larger: beyond it float32 would drown the logit, or overflow."""


@dataclass(frozen=True, kw_only=True)
class _Range:
    """The numbers that a setting can have."""

    is_whole: bool = False
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf

    def refuses(self, value: Any) -> str:
        """What is wanted instead of a value; empty if it is in the range."""
        if not _is(value, Integral if self.is_whole else Real) or not (self.is_whole or math.isfinite(value)):
            return "a whole number" if self.is_whole else "a finite number"
        if self.above < value <= self.at_most and value >= self.at_least:
            return ""
        if self.above > -math.inf:
            return f"above {self.above:g} and at most {self.at_most:g}"
        return (
            f"{self.at_least:g} or more" if self.at_most == math.inf else f"from {self.at_least:g} to {self.at_most:g}"
        )


def _number(
    default: float, text: str, *, at_least: float = -math.inf, above: float = -math.inf, at_most: float = math.inf
) -> Any:
    """A setting that is a finite number; ``text`` says at the command line what it does."""
    allowed = _Range(at_least=at_least, above=above, at_most=at_most)
    return field(default=default, metadata={"help": text, "range": allowed})


def _whole(default: int, text: str, *, at_least: float, at_most: float = math.inf) -> Any:
    """A setting that is a whole number."""
    allowed = _Range(is_whole=True, at_least=at_least, at_most=at_most)
    return field(default=default, metadata={"help": text, "range": allowed})


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

    At least one token always stays. ``seed`` picks the noise (0 <= seed < 2**64), ``attempt`` counts retries of the
    same prompt.

    Differences from llama.cpp: the lowest id goes first among equal logits, where llama.cpp's order depends on its
    sort; masses are float64; tokens that are already removed do not count for ``typical_p``, where llama.cpp's
    entropy becomes NaN; ``penalty_window=-1`` is the whole text; penalties and DRY apply with mirostat as well;
    temperature 0 takes the best token whatever mirostat and XTC would do.

    Raises:
        SettingsError: a value out of its range, or of the wrong type.
    """

    temperature: float = _number(0.8, "Divides the logits; 0 takes the best token.", at_least=0)
    top_k: int = _whole(40, "Keep the k best tokens; 0 for all.", at_least=0)
    top_p: float = _number(0.95, "Keep the likeliest tokens up to this mass; 1 for all.", above=0, at_most=1)
    min_p: float = _number(
        0.05, "Keep tokens at least this likely relative to the best; 0 for all.", at_least=0, at_most=1
    )
    typical_p: float = _number(1.0, "Keep the most typical tokens up to this mass; 1 for all.", above=0, at_most=1)
    top_n_sigma: float = _number(0.0, "Keep logits within this many standard deviations of the best; 0 for all.")
    repeat_penalty: float = _number(
        1.0, "Divides the logits of recent tokens; 1 for none.", at_least=1 / _LARGEST, at_most=_LARGEST
    )
    frequency_penalty: float = _number(
        0.0, "Subtracted from a recent token's logit per occurrence.", at_least=-_LARGEST, at_most=_LARGEST
    )
    presence_penalty: float = _number(
        0.0, "Subtracted from a recent token's logit once.", at_least=-_LARGEST, at_most=_LARGEST
    )
    penalty_window: int = _whole(64, "How many tokens are recent; -1 for all, 0 for none.", at_least=-1)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = _number(
        0.0, "Strength of DRY, which penalizes continuing a repetition; 0 for none.", at_least=0, at_most=_LARGEST
    )
    dry_base: float = _number(1.75, "Growth of DRY per repeated token.", at_least=1, at_most=_LARGEST)
    dry_allowed_length: int = _whole(2, "Repetitions shorter than this are free.", at_least=1)
    dry_penalty_window: int = _whole(64, "How many tokens DRY looks back; -1 for all, 0 for none.", at_least=-1)
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = _number(
        0.0, "Probability of XTC, which excludes the top choices; 0 for none.", at_least=0, at_most=1
    )
    xtc_threshold: float = _number(0.1, "Tokens at least this likely are top choices.", above=0, at_most=1)
    mirostat: int = _whole(0, "2 for mirostat v2 instead of top-n-sigma to XTC; 0 for none.", at_least=0, at_most=2)
    mirostat_tau: float = _number(
        5.0, "The surprise that mirostat aims at, in bits per token.", above=0, at_most=_LARGEST
    )
    mirostat_eta: float = _number(0.1, "How fast mirostat adapts.", at_least=0, at_most=_LARGEST)
    seed: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        def require(name: str, good: bool, wanted: str) -> None:
            if not good:
                raise SettingsError(f"is {getattr(self, name)!r} and must be {wanted}", argument=name)

        for each in fields(self):
            if "range" in each.metadata:
                wanted = each.metadata["range"].refuses(getattr(self, each.name))
                require(each.name, not wanted, wanted)
        require("mirostat", self.mirostat != 1, "0 (off) or 2")
        for name in ("seed", "attempt"):
            value = getattr(self, name)
            require(name, _is(value, Integral), "a whole number")
            require(name, 0 <= value < 1 << 64, "from 0 to 2**64 - 1")
        wanted = "a list of texts of at least one character"
        require("dry_breakers", isinstance(self.dry_breakers, list | tuple), wanted)
        require("dry_breakers", all(isinstance(x, str) and x for x in self.dry_breakers), wanted)
        object.__setattr__(self, "dry_breakers", tuple(self.dry_breakers))
        wanted = "a map from token ids to numbers from -1e+09 to 1e+09 or -inf"
        require("logit_bias", isinstance(self.logit_bias, Mapping), wanted)
        for token, bias in self.logit_bias.items():
            require("logit_bias", _is(token, Integral) and 0 <= token < 1 << 31, wanted)
            require("logit_bias", _is(bias, Real) and (bias == -math.inf or abs(bias) <= _LARGEST), wanted)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SamplerSettings:
        """Settings from names and values, such as keyword arguments; unknown names are errors."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=f"known are {', '.join(sorted(known))}")
        return cls(**values)

    @classmethod
    def valid(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some values that can be settings: what a file recommends may be damaged."""
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


class SamplerKeywords(TypedDict, total=False):
    """The fields of ``SamplerSettings`` as keyword arguments, for type checkers; ``seed`` is one of its own there."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int
    logit_bias: Mapping[int, float]
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_window: int
    dry_breakers: Sequence[str]
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    attempt: int


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
