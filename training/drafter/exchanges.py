"""Answers that others wrote, out of a folder of texts, each with what it answers.

Dialogues give their first exchange, other texts a passage of which the beginning is to be continued.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

from edge_spec.training.corpus import clean, read_records
from edge_spec.training.drafter.prompts import (
    CONTINUE,
    MAX_CHARACTERS,
    in_turns,
    is_of_records,
    parts_of,
    plain_text,
    text_paths,
)

__all__ = ["Exchange", "exchanges_in"]

_MIN_ANSWER = 16
_MAX_ANSWER = 8 * MAX_CHARACTERS
_BEGINNING = 3
"""The share of a passage that is given: a third."""


@dataclass(frozen=True)
class Exchange:
    """What was asked, and what somebody answered."""

    asked: str
    answer: str


def exchanges_in(folder: Path, *, seed: int, most: int, without: Collection[str] = ()) -> list[Exchange]:
    """At most ``most`` exchanges that a folder's texts hold, each once, in an order of their own.

    Sources take turns as those of prompts do. More of them begin with the same ones.

    Args:
        without: prompts of these texts that nothing may be learned from.

    Raises:
        ModelFileError: there is no text, or a file is not readable.
    """
    found: dict[Exchange, str] = {}
    for path in text_paths(folder):
        for source, exchange in _exchanges_of(path, without):
            found.setdefault(exchange, source)
    return list(islice(in_turns(found, Random(seed)), most))


def _exchanges_of(path: Path, without: Collection[str]) -> Iterator[tuple[str, Exchange]]:
    """Sources and exchanges."""
    if not is_of_records(path):
        yield from ((path.name, each) for each in _continued(plain_text(path), without))
        return
    for record in read_records(path):
        source = str(record.get("source", path.name))
        if "turns" not in record:
            yield from ((source, each) for each in _continued(str(record["text"]), without))
            continue
        exchange = _first(record["turns"])
        if exchange is not None and exchange.asked not in without:
            yield source, exchange


def _first(turns: list[Any]) -> Exchange | None:
    """Return what is answered first; None in lists of questions, and where that was not asked by a user."""
    for asked, answer in pairwise(turn for turn in turns if isinstance(turn, dict) and turn["role"] != "system"):
        if asked["role"] == "assistant":
            return None
        if answer["role"] == "assistant":
            texts = clean(asked["text"])[:MAX_CHARACTERS], clean(answer["text"])[:_MAX_ANSWER]
            return Exchange(*texts) if texts[0] and len(texts[1]) >= _MIN_ANSWER else None
    return None


def _continued(text: str, without: Collection[str]) -> Iterator[Exchange]:
    """Passages, as prompts have them, divided after a word."""
    for part in parts_of(text):
        end = part.find(" ", len(part) // _BEGINNING)
        if end > 0 and len(part) - end > _MIN_ANSWER and not any(part in prompt for prompt in without):
            yield Exchange(CONTINUE.format(part[:end]), part[end + 1 :])
