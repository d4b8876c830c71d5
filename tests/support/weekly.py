"""How many cases of a law every run tries, and how many more once a week (``pytest -m slow``)."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["seeds", "sizes"]


def sizes(usual: int, *, weekly: int) -> list[Any]:
    """Return both numbers of cases as values of a parameter."""
    return [usual, pytest.param(weekly, marks=pytest.mark.slow)]


def seeds(usual: int, *, weekly: int) -> list[Any]:
    """Return seeds as values of a parameter, one test each."""
    return [*range(usual), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(usual, weekly))]
