"""What a person may ask of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["SamplerSettings"]

_LARGEST = 1e9
"""No penalty or bias is larger: beyond it float32 would drown the logit, or overflow."""


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The law from which tokens are drawn, and the seed of the draw. Defaults are llama.cpp's.

    The transforms work in this order, which is llama.cpp's too:

    1. ``logit_bias``: added to the logits; ``-inf`` forbids a token.
    2. Penalties over the last ``penalty_window`` tokens of prompt and reply (0: none, -1: all of them):
       ``repeat_penalty`` divides positive logits and multiplies negative ones, ``frequency_penalty`` is
       subtracted once per occurrence, ``presence_penalty`` once.
    3. DRY, on unless ``dry_multiplier`` is 0: a token that would continue a repetition of n tokens within the last
       ``dry_penalty_window`` ones (0: none, -1: all) loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)``
       once n reaches ``dry_allowed_length``; no repetition reaches back beyond a text of ``dry_breakers``.
    4. ``top_n_sigma``: keep logits within that many standard deviations of the best (off below or at 0).
    5. ``top_k``: keep the k best (off at 0).
    6. ``typical_p``: keep the most typical tokens up to that mass (off at 1).
    7. ``top_p``: keep the likeliest tokens up to that mass (off at 1).
    8. ``min_p``: keep tokens at least that likely relative to the best (off at 0).
    9. XTC: with the chance ``xtc_probability`` (off at 0) all tokens that have ``xtc_threshold`` or more are out but
       the least likely of them.
    10. ``temperature``: divides the logits; 0 takes the best token, the lowest id among equals.

    With ``mirostat=2`` it takes the place of 4 to 9, after temperature: keep tokens whose surprise is at most mu bits;
    mu begins at ``2 * mirostat_tau`` and moves by ``mirostat_eta`` times what the surprise of each token lacks to
    ``mirostat_tau``. A grammar comes before everything.

    At least one token always survives. ``seed`` picks the noise (0 <= seed < 2**64), ``attempt`` counts
    retries of the same prompt.

    Differences from llama.cpp: the lowest id goes first among equal logits, where llama.cpp's order
    depends on its sort; masses are float64; tokens that are out already do not count for ``typical_p``, where
    llama.cpp's entropy becomes NaN; ``penalty_window=-1`` is the whole text; penalties and DRY hold with mirostat
    as well; temperature 0 takes the best token whatever mirostat and XTC would do.

    Raises:
        SettingsError: a value out of its range, or of the wrong type.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
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
        def require(name: str, good: bool, wanted: str) -> None:
            if not good:
                raise SettingsError(f"is {getattr(self, name)!r} and must be {wanted}", argument=name)

        for name in (
            "temperature",
            "top_p",
            "min_p",
            "typical_p",
            "top_n_sigma",
            "repeat_penalty",
            "frequency_penalty",
            "presence_penalty",
            "dry_multiplier",
            "dry_base",
            "xtc_probability",
            "xtc_threshold",
            "mirostat_tau",
            "mirostat_eta",
        ):
            value = getattr(self, name)
            require(name, _is(value, Real) and math.isfinite(value), "a finite number")
        for name in (
            "top_k",
            "penalty_window",
            "dry_allowed_length",
            "dry_penalty_window",
            "mirostat",
            "seed",
            "attempt",
        ):
            require(name, _is(getattr(self, name), Integral), "a whole number")
        require("temperature", self.temperature >= 0, "0 or more")
        require("top_k", self.top_k >= 0, "0 (off) or more")
        require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        require("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        require("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1")
        require("repeat_penalty", 1 / _LARGEST <= self.repeat_penalty <= _LARGEST, "from 1e-09 to 1e+09")
        require("frequency_penalty", abs(self.frequency_penalty) <= _LARGEST, "from -1e+09 to 1e+09")
        require("presence_penalty", abs(self.presence_penalty) <= _LARGEST, "from -1e+09 to 1e+09")
        require("penalty_window", self.penalty_window >= -1, "-1 (everything), 0 (off) or more")
        require("dry_multiplier", 0 <= self.dry_multiplier <= _LARGEST, "from 0 (off) to 1e+09")
        require("dry_base", 1 <= self.dry_base <= _LARGEST, "from 1 to 1e+09")
        require("dry_allowed_length", self.dry_allowed_length >= 1, "1 or more")
        require("dry_penalty_window", self.dry_penalty_window >= -1, "-1 (everything), 0 (off) or more")
        require("xtc_probability", 0 <= self.xtc_probability <= 1, "from 0 (off) to 1")
        require("xtc_threshold", 0 < self.xtc_threshold <= 1, "above 0 and at most 1")
        require("mirostat", self.mirostat in (0, 2), "0 (off) or 2")
        require("mirostat_tau", 0 < self.mirostat_tau <= _LARGEST, "above 0 and at most 1e+09")
        require("mirostat_eta", 0 <= self.mirostat_eta <= _LARGEST, "from 0 to 1e+09")
        wanted = "a list of texts of at least one character"
        require("dry_breakers", isinstance(self.dry_breakers, list | tuple), wanted)
        require("dry_breakers", all(isinstance(x, str) and x for x in self.dry_breakers), wanted)
        object.__setattr__(self, "dry_breakers", tuple(self.dry_breakers))
        require("seed", 0 <= self.seed < 1 << 64, "from 0 to 2**64 - 1")
        require("attempt", 0 <= self.attempt < 1 << 64, "from 0 to 2**64 - 1")
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

    @property
    def penalises(self) -> bool:
        """Whether the text so far changes the law."""
        return self.penalty_window != 0 and (
            self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        )

    @property
    def avoids_repetition(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_window != 0

    @property
    def excludes_top_choices(self) -> bool:
        """Whether XTC is on; at most one token can have more than half of the mass."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def uses_mirostat(self) -> bool:
        """Whether mirostat takes the place of the filters."""
        return self.mirostat == 2 and self.temperature > 0
