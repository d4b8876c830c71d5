"""Cuts that an expression would find in quadratic time. Each yields where parts of ``text[begin:end]`` end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge_spec.models.gguf_tokenizer.categories import NUMBER

__all__ = ["ascii_digits", "grouped_digits", "white_space_at_the_end"]

_NUMBER = re.compile(f"[0-9{NUMBER}]+")
_ASCII_NUMBER = re.compile("[0-9]+")
_WHITE_SPACE = " \t\n\r\f\v"


def grouped_digits(text: str, begin: int, end: int) -> Iterator[int]:
    """Cut numbers into groups of three digits from the right; text before a number belongs to its first group."""
    for number in _NUMBER.finditer(text, begin, end):
        yield from range(number.start() + ((number.end() - number.start() - 1) % 3 + 1), number.end() + 1, 3)
    yield end


def ascii_digits(text: str, begin: int, end: int) -> Iterator[int]:
    """Cut before each group of three ASCII digits from the right."""
    for number in _ASCII_NUMBER.finditer(text, begin, end):
        yield from range(number.start() + (number.end() - number.start()) % 3, number.end(), 3)
    yield end


def white_space_at_the_end(text: str, begin: int, end: int) -> Iterator[int]:
    """Cut off the white space at the end."""
    yield begin + len(text[begin:end].rstrip(_WHITE_SPACE))
    yield end
