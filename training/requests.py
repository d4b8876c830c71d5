"""Stories become answers: somebody asks for one, and here it is.

A model that reads stories only as bare text does not know that "Tell me a story" asks for one.
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
_THING = re.compile(r"\b(?:an?|the) (?:(?:little|big|small|old|red|blue|green|happy|sad|brave) )?([a-z]{3,12})\b")
_NAMED = re.compile(r"\bnamed ([A-Z][a-z]{2,11})\b")
_NO_THINGS = frozenset(
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
    """A request that this story answers: for any story, or one about what or whom it names most often."""
    subjects = Counter(thing for thing in _THING.findall(story) if thing not in _NO_THINGS)
    common = [thing for thing, n in subjects.most_common(4) if n >= 2]
    about = [f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}" for thing in common] + _NAMED.findall(story)[:1]
    if not about or random.random() < 0.25:
        return random.choice(_PLAIN)
    return random.choice(_ABOUT).format(random.choice(about))
