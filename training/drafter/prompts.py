"""Prompts for the target out of a folder of texts.

Dialogues give their first user turn, other texts a passage below a fixed instruction. Where the target has a chat
template, every third prompt is a question that it asks itself, after its own header of a user's turn (Magpie: Xu et
al., arXiv 2406.08464).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import TypeVar

from edge_spec.errors import ModelFileError
from edge_spec.training.corpus import clean, read_records

__all__ = [
    "CONTINUE",
    "INSTRUCTIONS",
    "MAX_CHARACTERS",
    "in_turns",
    "is_of_records",
    "parts_of",
    "plain_text",
    "prompts_in",
    "text_paths",
]

CONTINUE = "Continue this text:\n\n{}"
INSTRUCTIONS = (
    "Summarize this text in two sentences:\n\n{}",
    "What is this text about?\n\n{}",
    "Explain this text in simple words:\n\n{}",
    "Write a question that this text answers, and answer it:\n\n{}",
    "List the main points of this text:\n\n{}",
    CONTINUE,
    "Rewrite this text in a friendlier tone:\n\n{}",
)

MAX_CHARACTERS = 900
_MIN_CHARACTERS = 8
Found = TypeVar("Found")

_RECORDS, _PLAIN = (".jsonl", ".jsonl.xz"), (".txt", ".md")


def prompts_in(folder: Path, *, seed: int, most: int = 1 << 20, characters: int = MAX_CHARACTERS) -> list[str]:
    """At most ``most`` prompts that a folder's texts give, each once, in an order of their own.

    Sources (what records name, or else files) take turns, so that a large one does not outweigh the others.

    Args:
        characters: the most of a user's turn, and of a passage.

    Raises:
        ModelFileError: there is no text, or less than two prompts in them, or a file is not readable.
    """
    random = Random(seed)
    found: dict[str, str] = {}
    for path in text_paths(folder):
        for source, prompt in _prompts_of(path, random, characters):
            found.setdefault(prompt, source)
    if len(found) < 2:
        raise ModelFileError(
            f"the texts in {folder} give {len(found)} prompts, and two are the least",
            hint="add texts, or dialogues with turns of a user",
        )
    return list(islice(in_turns(found, random), most))


def text_paths(folder: Path) -> list[Path]:
    """Return the files of a folder that hold texts.

    Raises:
        ModelFileError: there is none.
    """
    if not folder.is_dir():
        raise ModelFileError(f"there is no folder {folder}", hint="give --texts a folder of .txt, .md or .jsonl files")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith((*_RECORDS, *_PLAIN)))
    if not paths:
        raise ModelFileError(f"{folder} holds no text", hint="put .txt, .md, .jsonl or .jsonl.xz files into it")
    return paths


def is_of_records(path: Path) -> bool:
    """Return whether a file of texts holds records rather than one text."""
    return path.name.endswith(_RECORDS)


def in_turns(found: Mapping[Found, str], random: Random) -> Iterator[Found]:
    """Return what was found, in random order, its sources taking turns.

    Args:
        found: the source of each.
    """
    by_source: dict[str, list[Found]] = {}
    for each, source in found.items():
        by_source.setdefault(source, []).append(each)
    for some in by_source.values():
        random.shuffle(some)
    return (each for turn in zip_longest(*by_source.values()) for each in turn if each is not None)


def _prompts_of(path: Path, random: Random, characters: int) -> Iterator[tuple[str, str]]:
    """Sources and prompts."""
    if is_of_records(path):
        for record in read_records(path):
            source = str(record.get("source", path.name))
            if "turns" not in record:
                yield from ((source, prompt) for prompt in _passages(str(record["text"]), random, characters))
                continue
            turns = record["turns"]
            first = next((turn for turn in turns if isinstance(turn, str) or turn["role"] != "assistant"), None)
            if first is not None:
                said = clean(first if isinstance(first, str) else first["text"])
                yield from ((source, prompt) for prompt in _fitting(said, characters))
        return
    yield from ((path.name, prompt) for prompt in _passages(plain_text(path), random, characters))


def plain_text(path: Path) -> str:
    """Return a file that is one text.

    Raises:
        ModelFileError: it is not readable.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is not readable text ({error})", hint="save it as UTF-8") from error


def _passages(text: str, random: Random, characters: int) -> Iterator[str]:
    """Return the parts of a text, each below an instruction."""
    return (random.choice(INSTRUCTIONS).format(part) for part in parts_of(text, characters))


def parts_of(text: str, characters: int = MAX_CHARACTERS) -> Iterator[str]:
    """Yield a text in parts of some paragraphs that can be asked about."""
    part = ""
    for paragraph in [*clean(text).split("\n\n"), None]:
        if paragraph is not None and len(part) + len(paragraph) <= characters:
            part = f"{part}\n\n{paragraph}" if part else paragraph
            continue
        yield from _fitting(part, characters)
        part = (paragraph or "")[:characters]


def _fitting(text: str, characters: int) -> Iterator[str]:
    """Yield the text if it can be asked about, cut where it is too long."""
    if len(text) >= _MIN_CHARACTERS and any(letter.isalpha() for letter in text):
        yield text[:characters]
