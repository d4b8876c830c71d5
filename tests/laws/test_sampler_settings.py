"""Laws of the sampler's settings: which values are allowed, and what is said of the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest

from edge_spec.controller.options import LOAD_OPTIONS
from edge_spec.errors import SettingsError
from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.options import Option
from edge_spec.sampling import SAMPLER_OPTIONS, SamplerKeywords, SamplerSettings

OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "at least 0"),
    ("top_k", -1, "at least 0"),
    ("top_k", 1.5, "whole"),
    ("top_k", True, "whole"),
    ("top_p", 0.0, "above 0 and at most 1"),
    ("top_p", 1.01, "above 0 and at most 1"),
    ("min_p", -0.01, "from 0 to 1"),
    ("min_p", 1.01, "from 0 to 1"),
    ("typical_p", 0.0, "above 0 and at most 1"),
    ("typical_p", 2.0, "above 0 and at most 1"),
    ("repeat_penalty", 0.0, "from 1e-09"),
    ("repeat_penalty", -1.0, "from 1e-09"),
    ("repeat_penalty", 1e10, "to 1e.09"),
    ("frequency_penalty", 1e10, "to 1e.09"),
    ("presence_penalty", -1e10, "from -1e.09"),
    ("penalty_window", -2, "at least -1"),
    ("dry_multiplier", -0.1, "from 0 to"),
    ("dry_base", 0.9, "from 1"),
    ("dry_allowed_length", 0, "at least 1"),
    ("dry_allowed_length", 2.0, "whole"),
    ("dry_penalty_window", -2, "at least -1"),
    ("dry_breakers", "a", "a list of texts"),
    ("dry_breakers", [""], "a list of texts"),
    ("xtc_probability", 1.1, "from 0 to 1"),
    ("xtc_threshold", 0.0, "above 0 and at most 1"),
    ("mirostat", 1, "0 .off. or 2"),
    ("mirostat_tau", 0.0, "above 0"),
    ("mirostat_eta", -0.1, "from 0"),
    ("seed", -(1 << 63) - 1, "from -2..63 to 2..64 - 1"),
    ("seed", 1 << 64, "from -2..63 to 2..64 - 1"),
    ("attempt", -1, "from 0 to 2..64 - 1"),
    ("attempt", 1 << 64, "from 0 to 2..64 - 1"),
    ("logit_bias", {-1: 0.0}, "token ids"),
    ("logit_bias", {1 << 31: 0.0}, "token ids"),
    ("logit_bias", {"a": 0.0}, "token ids"),
    ("logit_bias", {3: math.nan}, "from .* to .*, or -inf"),
    ("logit_bias", {3: math.inf}, "from .* to .*, or -inf"),
    ("logit_bias", {3: "x"}, "from .* to .*, or -inf"),
    ("logit_bias", {3: 10**5000}, "from .* to .*, or -inf"),
    ("logit_bias", [3], "a map"),
    *(
        (name, value, "a finite number")
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
        )
        for value in (math.nan, math.inf, -math.inf, 10**309, -(10**309), "1", None, True)
    ),
]


@pytest.mark.parametrize(("name", "value", "wanted"), OUT_OF_RANGE)
def test_a_value_out_of_its_range_is_refused_with_name_and_range(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is .* must be .*{wanted}"):
        SamplerSettings(**{name: value})


@pytest.mark.parametrize("option", [*SAMPLER_OPTIONS.values(), *REPLY_OPTIONS.values(), *LOAD_OPTIONS.values()])
def test_a_number_that_is_none_is_told_the_same_range_as_one_beyond_it(option: Option) -> None:
    bounds = {option.at_least, option.above, option.at_most} - {math.inf, -math.inf}
    if option.kind in (int, float) and bounds:
        beyond = option.wanted_instead(min(bounds) - 1) or option.wanted_instead(max(bounds) + 1)
        assert beyond
        assert option.wanted_instead("x").endswith(beyond)
        wanted = option.wanted_instead(math.nan)
        assert option.kind is int or (wanted.startswith("a finite number ") and wanted.endswith(beyond))


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting top_q; did you mean .*top_p"):
        SamplerSettings.of({"top_q": 1, "top_p": 0.5})
    assert SamplerSettings.of({"top_p": 0.5}) == SamplerSettings(top_p=0.5)


def test_settings_are_frozen() -> None:
    bias = {1: 2.0}
    s = SamplerSettings(logit_bias=bias)
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        s.logit_bias[1] = 0.0  # type: ignore[index]
    bias[1] = 0.0
    assert s.logit_bias == {1: 2.0}
    assert s == dataclasses.replace(s) != dataclasses.replace(s, seed=1)


def test_bounds_themselves_are_allowed() -> None:
    for bounds in (
        {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1, "typical_p": 1, "penalty_window": -1},
        {"seed": (1 << 64) - 1, "attempt": (1 << 64) - 1, "repeat_penalty": 1e-9},
        {"top_p": 1e-300, "min_p": 0, "top_n_sigma": -7, "logit_bias": {0: -math.inf, 5: 1e9}},
    ):
        allowed = SamplerSettings.of(bounds)
        assert {name: getattr(allowed, name) for name in bounds} == bounds


@pytest.mark.parametrize("seed", [-1, -7, -(1 << 63)])
def test_a_negative_seed_is_that_of_the_same_bits_without_a_sign(seed: int) -> None:
    assert SamplerSettings(seed=seed) == SamplerSettings(seed=seed + (1 << 64)) != SamplerSettings(seed=1)


def test_penalties_are_off_unless_they_change_something() -> None:
    assert not SamplerSettings().uses_penalties
    assert not SamplerSettings(repeat_penalty=2.0, penalty_window=0).uses_penalties
    for name in ("repeat_penalty", "frequency_penalty", "presence_penalty"):
        assert SamplerSettings(**{name: 0.5}).uses_penalties  # type: ignore[arg-type]


def test_keywords_and_settings_are_one_list() -> None:
    hints = get_type_hints(SamplerSettings)
    # Every reply has these, whatever draws it.
    del hints["seed"], hints["attempt"]
    assert get_type_hints(SamplerKeywords) == {**hints, "dry_breakers": Sequence[str]}
    assert not SamplerKeywords.__required_keys__
    assert {name: each.default for name, each in SAMPLER_OPTIONS.items()} == {
        name: getattr(SamplerSettings(), name) for name in hints
    }
