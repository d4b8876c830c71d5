"""Requests that stories answer.

A model that has read stories only as plain text does not know that "Tell me a story" asks for one, so most stories
are turned into a request and its answer.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

__all__ = ["request_for"]

_PLAIN = (
    "Tell me a story.",
    "Tell me a short story.",
    "Can you tell me a story, please?",
    "Please tell me a bedtime story.",
    "I would like to hear a story.",
    "Could you tell me a children's story?",
)
_ABOUT = (
    "Tell me a story about {}.",
    "Tell me a short story about {}.",
    "Can you tell me a story about {}?",
    "Please tell me a story about {}.",
    "Write a short story about {}.",
    "I would like a story about {}.",
)
_SUBJECT = re.compile(r"\b(?:an?|the) (?:(?:little|big|small|old|red|blue|green|happy|sad|brave) )?([a-z]{3,12})\b")
_NAMED = re.compile(r"\bnamed ([A-Z][a-z]{2,11})\b")
_NOT_SUBJECTS = frozenset(
    (
        "day",
        "time",
        "end",
        "next",
        "same",
        "other",
        "way",
        "lot",
        "bit",
        "few",
        "many",
        "more",
        "most",
        "best",
        "first",
        "last",
        "one",
        "two",
        "that",
        "this",
        "very",
        "new",
        "old",
        "little",
        "big",
        "small",
        "good",
        "bad",
        "moral",
        "morning",
        "evening",
        "night",
        "story",
        "moment",
        "while",
    )
)


def request_for(story: str, random: Random) -> str:
    """Return a request that this story answers: for any story, or for one about what or whom it mentions most often."""
    subjects = Counter(noun for noun in _SUBJECT.findall(story) if noun not in _NOT_SUBJECTS)
    common = [noun for noun, n in subjects.most_common(4) if n >= 2]
    about = [f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}" for noun in common] + _NAMED.findall(story)[:1]
    if not about or random.random() < 0.25:
        return random.choice(_PLAIN)
    return random.choice(_ABOUT).format(random.choice(about))
