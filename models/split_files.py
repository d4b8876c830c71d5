"""Models in several files, named as by llama-gguf-split: ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["is_gguf", "is_later_part", "parts_of", "stem_of"]

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.IGNORECASE | re.DOTALL)


def is_gguf(path: Path) -> bool:
    """Return whether a file is called a GGUF, in small letters or capitals."""
    return path.suffix.lower() == ".gguf"


def parts_of(first: str) -> list[str]:
    """Return the names or paths of all files of a model, by the first one's; of a model in one file, that one."""
    found = _PART.fullmatch(first)
    if found is None or int(found[2]) != 1:
        return [first]
    return [f"{found[1]}-{number:05}-of-{found[3]}{first[-5:]}" for number in range(1, int(found[3]) + 1)]


def is_later_part(name: str) -> bool:
    """Return whether a file is not the first one of its model."""
    found = _PART.fullmatch(name)
    return found is not None and int(found[2]) != 1


def stem_of(name: str) -> str:
    """Return the name of a file without its number and its ending."""
    found = _PART.fullmatch(name)
    return found[1] if found else name.removesuffix(".gguf").removesuffix(".GGUF")
