"""What a person may ask of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["SamplerSettings"]


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The law from which tokens are drawn, and the seed of the draw. Defaults are llama.cpp's.

    The transforms work in this order, which is llama.cpp's too:

    1. ``logit_bias``: added to the logits; ``-inf`` forbids a token.
    2. Penalties over the last ``penalty_window`` tokens of prompt and reply (0: none, -1: all of them):
       ``repeat_penalty`` divides positive logits and multiplies negative ones, ``frequency_penalty`` is
       subtracted once per occurrence, ``presence_penalty`` once.
    3. ``top_n_sigma``: keep logits within that many standard deviations of the best (off below or at 0).
    4. ``top_k``: keep the k best (off at 0).
    5. ``typical_p``: keep the most typical tokens up to that mass (off at 1).
    6. ``top_p``: keep the likeliest tokens up to that mass (off at 1).
    7. ``min_p``: keep tokens at least that likely relative to the best (off at 0).
    8. ``temperature``: divides the logits; 0 takes the best token, the lowest id among equals.

    At least one token always survives. ``seed`` picks the noise (0 <= seed < 2**64), ``attempt`` counts retries
    of the same prompt.

    Raises:
        SettingsError: a value out of its range.
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
    seed: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        def require(name: str, good: bool, wanted: str) -> None:
            if not good:
                raise SettingsError(f"{name} is {getattr(self, name)!r} and must be {wanted}")

        for name in ("temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "repeat_penalty",
                     "frequency_penalty", "presence_penalty"):  # fmt: skip
            require(name, math.isfinite(getattr(self, name)), "finite")
        require("temperature", self.temperature >= 0, "0 or more")
        require("top_k", self.top_k >= 0, "0 (off) or more")
        require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        require("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        require("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1")
        require("repeat_penalty", self.repeat_penalty > 0, "above 0")
        require("penalty_window", self.penalty_window >= -1, "-1 (everything), 0 (off) or more")
        require("seed", 0 <= self.seed < 1 << 64, "from 0 to 2**64 - 1")
        require("attempt", 0 <= self.attempt < 1 << 64, "from 0 to 2**64 - 1")
        for token, bias in self.logit_bias.items():
            require("logit_bias", token >= 0 and not math.isnan(bias) and bias != math.inf,
                    "a map from token ids to finite numbers or -inf")  # fmt: skip
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SamplerSettings:
        """Settings from names and values, such as keyword arguments; unknown names are errors."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SettingsError(
                f"unknown setting {', '.join(unknown)}", hint=f"known are {', '.join(sorted(known))}"
            )
        return cls(**values)

    @property
    def penalises(self) -> bool:
        """Whether the text so far changes the law."""
        return self.penalty_window != 0 and (
            self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        )
