"""Sources of the training text and their licenses, for the metadata of the files and the card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["Source", "sources_of"]


@dataclass(frozen=True)
class Source:
    """A source: its full name, its license, and what kind of text it is."""

    name: str
    license: str
    what: str


_KNOWN: Mapping[str, Source] = MappingProxyType(
    {
        "self_dialogue_corpus": Source("Self-dialogue Corpus", "BSD-3-Clause", "open-domain conversation"),
        "dstc8-schema-guided-dialogue": Source(
            "DSTC8 Schema-Guided Dialogue", "CC BY-SA 4.0", "conversations with an assistant about tasks"
        ),
        "Topical-Chat": Source(
            "Topical-Chat (validation and test parts)", "CDLA-Sharing-1.0", "conversations on topics"
        ),
        "Synthetic-Persona-Chat": Source(
            "Synthetic-Persona-Chat (validation and test parts)", "CC BY 4.0", "small talk"
        ),
        "MedQuAD": Source("MedQuAD", "CC BY 4.0", "medical questions and answers"),
        "english-wordnet": Source("Open English WordNet (part)", "CC BY 4.0", "definitions"),
        "OpenTriviaQA": Source("OpenTriviaQA", "CC BY-SA 4.0", "trivia"),
        "tldr": Source("tldr pages", "CC BY 4.0", "help on commands"),
        "GPTeacher": Source("GPTeacher (roleplay and code parts)", "MIT", "instructions, written by GPT-4"),
        "chinkara-openqa-dataset": Source(
            "Dolly open questions (from chinkara-openqa)", "CC BY-SA 3.0", "open questions"
        ),
        "asp-source": Source("African Storybook (English)", "CC BY", "very simple stories"),
        "osbooks-psychology": Source("OpenStax Psychology", "CC BY 4.0", "textbook"),
        "osbooks-introduction-sociology": Source("OpenStax Introduction to Sociology", "CC BY 4.0", "textbook"),
        "osbooks-us-history": Source("OpenStax U.S. History", "CC BY 4.0", "textbook"),
        "osbooks-introduction-political-science": Source(
            "OpenStax Introduction to Political Science", "CC BY 4.0", "textbook"
        ),
        "gsm8k-train": Source("GSM8K (training part)", "MIT", "arithmetic, step by step"),
        "tinystories-pieces": Source("TinyStories (4,000 stories)", "CDLA-Sharing-1.0", "very simple stories"),
        "gutenberg": Source(
            "Project Gutenberg",
            "public domain in the United States",
            "children's books of the 19th and early 20th century",
        ),
    }
)


def sources_of(names: Iterable[str]) -> list[Source]:
    """Return the sources of these names; the license of an unknown one is ``not stated``."""
    return [_KNOWN.get(name, Source(name, "not stated", "")) for name in names]
