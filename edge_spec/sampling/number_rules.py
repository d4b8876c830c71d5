"""Grammar rules for numbers within bounds."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["integers", "numbers"]

_DIGITS = "[0-9]{0,14}"
_FRACTION = '("." [0-9]{1,15})?'
_POWER = "([eE] [+-]? [0-9]{1,2})?"


def integers(bounds: Mapping[str, int]) -> str | None:
    """Integers of at most 15 digits within minimum, maximum, exclusiveMinimum and exclusiveMaximum.

    None if there are none.
    """
    low, high = _range(bounds)
    alternatives = []
    if low is None or low < 0:
        # Without minus zero.
        alternatives += [f'"-" {rule}' for rule in _from_to(max(1, -high) if high is not None else 1, low and -low)]
    if high is None or high >= 0:
        alternatives += _from_to(max(0, low or 0), high)
    return "(" + " | ".join(alternatives) + ")" if alternatives else None


def numbers(bounds: Mapping[str, int]) -> str | None:
    """Numbers within the same bounds; None if there are none."""
    if not bounds:
        return f'"-"? ("0" | [1-9] {_DIGITS}) {_FRACTION} {_POWER}'
    low, high = _open(bounds, "inimum", max), _open(bounds, "aximum", min)
    alternatives = []
    if low is None or low[0] < 0:
        # Numbers below zero, as a minus sign and the mirrored bounds.
        near = (-high[0], high[1]) if high is not None and high[0] < 0 else (0, True)
        alternatives += [f'"-" {rule}' for rule in _between(near, (-low[0], low[1]) if low is not None else None)]
    if high is None or high[0] >= 0:
        alternatives += _between(low if low is not None and low[0] >= 0 else (0, False), high)
    return "(" + " | ".join(alternatives) + ")" if alternatives else None


Bound = tuple[int, bool]
"""A bound, and whether it is excluded."""


def _open(bounds: Mapping[str, int], name: str, tightest: object) -> Bound | None:
    found = []
    if "m" + name in bounds:
        found.append((bounds["m" + name], False))
    if "exclusiveM" + name in bounds:
        found.append((bounds["exclusiveM" + name], True))
    if not found:
        return None
    sign = 1 if tightest is max else -1
    return max(found, key=lambda bound: (sign * bound[0], bound[1]))


def _range(bounds: Mapping[str, int]) -> tuple[int | None, int | None]:
    low, high = _open(bounds, "inimum", max), _open(bounds, "aximum", min)
    return (low and low[0] + low[1]), (high and high[0] - high[1])


def _between(low: Bound, high: Bound | None) -> list[str]:
    """Alternatives for the numbers from ``low``, which is not negative, to ``high``."""
    start, excluded = low
    above = '"." [0-9]{0,13} [1-9]'
    if high is not None and start >= high[0]:
        closed = start == high[0] and not excluded and not high[1]
        return [f'"{start}" ("." "0"{{1,3}})?'] if closed else []
    rules = [f'"{start}" {above}' if excluded else f'"{start}" {_FRACTION}']
    rules += [f"{rule} {_FRACTION}" for rule in _from_to(start + 1, None if high is None else high[0] - 1)]
    if high is not None and not high[1]:
        rules.append(f'"{high[0]}" ("." "0"{{1,3}})?')
    return rules


def _from_to(low: int, high: int | None) -> list[str]:
    """Alternatives for the integers from ``low``, which is not negative, to ``high``."""
    if high is not None and low > high:
        return []
    if high is None:
        n = len(str(low))
        longer = [f"[1-9] [0-9]{{{n},14}}"] if n < 15 else []
        return _from_to(low, 10**n - 1) + longer
    rules = []
    while low <= high:
        # The largest block of numbers with the same leading digits that starts at ``low``.
        n = 0
        while low % 10 ** (n + 1) == 0 and low > 0 and low + 10 ** (n + 1) - 1 <= high:
            n += 1
        block = 10**n
        digit = low // block % 10
        most = digit
        while most < 9 and low + (most + 2 - digit) * block - 1 <= high:
            most += 1
        beginning = str(low // block)[:-1]
        chosen = f"[{digit}-{most}]" if most > digit else f'"{digit}"'
        rules.append(" ".join([*([f'"{beginning}"'] if beginning else []), chosen, *([f"[0-9]{{{n}}}"] if n else [])]))
        low += (most - digit + 1) * block
    return rules
