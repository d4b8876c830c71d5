"""Numbers of cases of a law: few in every run, more in ``.ci/run``, most in ``pytest -m slow`` once a week."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["seeds", "sizes"]


def sizes(usual: int, *, weekly: int, loop: int | None = None) -> list[Any]:
    """Return numbers of cases as values of a parameter.

    Args:
        loop: how many plain ``pytest`` tries, if those that are usual take too long for it.
    """
    found = [usual] if loop is None else [loop, pytest.param(usual, marks=pytest.mark.long)]
    return [*found, pytest.param(weekly, marks=pytest.mark.slow)]


def seeds(usual: int, *, weekly: int) -> list[Any]:
    """Return seeds as values of a parameter, one test each."""
    return [*range(usual), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(usual, weekly))]
