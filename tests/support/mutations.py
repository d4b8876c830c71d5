"""Damage that is the same for the same number: to bytes, and to JSON values."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["ODD", "Mutations"]

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 255, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308, -0.0),
    *("", "x", "\0", "\x1b]0;x\x07", "a" * 5000, "\ud800", "../../x", "-1", "9" * 4000, "[", "{{", "%s", "\u202e"),
    *([], {}, [[]], [None], {"": None}, [0] * 300, {"a": {"a": {"a": {}}}}),
)
"""What programs forget that a value may be."""

_NUMBERS = tuple(
    n.to_bytes(size, "little", signed=n < 0) for size in (4, 8) for n in (0, 1, -1, 2**31 - 1, 1 << (8 * size - 2), 255)
)


class Mutations:
    """Changes things at random.

    Args:
        seed: of the chance; equal ones do the same to equal things.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of_bytes(self, raw: bytes, *, most: int | None = None) -> bytes:
        """Return some bytes with a few changed, cut out, put in or cut off, most of them among the first ``most``."""
        chance, made = self.random, bytearray(raw)
        for _ in range(chance.choice((1, 1, 2, 5))):
            end = min(len(made), most or len(made)) if chance.random() < 0.8 else len(made)
            at, kind = chance.randrange(max(1, end)), chance.random()
            if kind < 0.5:
                made[at : at + 1] = bytes([chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))])
            elif kind < 0.75:
                number = chance.choice(_NUMBERS)
                made[at : at + len(number)] = number
            elif kind < 0.85:
                del made[at : at + chance.choice((1, 4, 100))]
            elif kind < 0.95:
                made[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 30))))
            else:
                del made[at:]
        return bytes(made)

    def of_json(self, value: Any) -> Any:
        """Return a value with a few of the values in it changed, left out, or put elsewhere."""
        for _ in range(self.random.choice((1, 1, 2, 4))):
            value = self._changed(value)
        return value

    def _changed(self, value: Any) -> Any:
        chance = self.random
        if isinstance(value, dict) and value and chance.random() < 0.9:
            name = chance.choice(list(value))
            if chance.random() < 0.1:
                return {key: each for key, each in value.items() if key != name}
            return {**value, name: self._changed(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.8:
            at = chance.randrange(len(value))
            if chance.random() < 0.2:
                return value[:at] + value[at + chance.randrange(2) :] + [chance.choice(ODD)] * chance.randrange(2)
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        if type(value) is int and chance.random() < 0.5:
            return value + chance.choice((-1, 1, 7, 1000, -1000))
        return chance.choice(ODD)
