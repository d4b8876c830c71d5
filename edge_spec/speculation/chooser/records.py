"""Numbers read from what an earlier run has kept: a damaged file must not decide."""

from __future__ import annotations

from math import isfinite
from typing import Any

__all__ = ["at_least_zero", "chance", "positive", "whole"]


def positive(value: Any) -> float:
    """Return a finite number above 0.

    Raises:
        ValueError, TypeError: it is something else.
    """
    number = float(value)
    if not (isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is not a positive number")
    return number


def at_least_zero(value: Any) -> float:
    """Return a finite number that is not negative.

    Raises:
        ValueError, TypeError: it is something else.
    """
    return 0.0 if float(value) == 0 else positive(value)


def chance(value: Any) -> float:
    """Return a number from 0 to 1.

    Raises:
        ValueError, TypeError: it is something else.
    """
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} is not a chance")
    return number


def whole(value: Any, *, least: int | None = None) -> int:
    """Return a whole number.

    Raises:
        ValueError, TypeError: it is something else, or below ``least``.
    """
    try:
        number = int(value)
    except OverflowError:
        raise ValueError(f"{value!r} is not a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{value!r} is below {least}")
    return number
