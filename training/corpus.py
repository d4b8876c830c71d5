"""Training text: JSONL files, read, cleaned, split, and written as conversations.

A record is ``{"source", "turns": [{"role", "text"}]}`` or ``{"source", "text"}`` (with a ``title`` for books), one
per line, in files that end in ``.jsonl`` or ``.jsonl.xz``.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, TextIO, cast

from edge_spec.errors import ModelFileError
from edge_spec.foreign import parse_json
from edge_spec.training.requests import request_for

__all__ = ["TEMPLATE", "Document", "Span", "read_documents", "read_records", "spans_of"]

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The chat template (ChatML) of the files; ``spans_of`` writes conversations in the same way."""

_STORIES = ("tinystories-pieces", "asp-source")
_PART_CHARACTERS = 6000
_NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Grace",
    "Henry",
    "Jack",
    "Kate",
    "Leo",
    "Mary",
    "Noah",
    "Paul",
    "Rose",
    "Sam",
    "Tom",
    "Vera",
    "Will",
)
_LONGEST_LINE = 16 << 20
_SMALL = 1 << 26
_MOST_GROWTH = 200
"""So many characters of a packed file are read in any case, and so many times its size: texts shrink to a tenth."""
# From where spaces begin, and whole: else a run of them would be read anew from each.
_TRAILING = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\n|$)")
_INNER = re.compile(r"(?<=\S)[ \t\u00a0]+")
_BLANKS = re.compile(r"\n{3,}")
_PLACEHOLDER = re.compile(r"\[(?:user ?([12])(?:'s)?(?: name)?|(?:your |user)?name)\]", re.IGNORECASE)
_SIGNS = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\r": None, "\u200b": None})


@dataclass(frozen=True)
class Span:
    """A part of a document.

    Attributes:
        kind: ``head`` (the frame around a message, which no reply contains), ``user``, or ``text``; decides what is
            learned.
        special: whether the text is the name of a special token.
    """

    text: str
    kind: str
    special: bool = False


@dataclass(frozen=True)
class Document:
    """One training text.

    Attributes:
        whole: False for a part of a longer text: that it ends is then not learned.
        n_bytes: bytes of the words, without the frames of messages.
    """

    source: str
    spans: tuple[Span, ...]
    whole: bool
    n_bytes: int
    held_out: bool


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one file.

    Raises:
        ModelFileError: the file cannot be read, or a line is not a valid record.
    """
    try:
        most = _SMALL + _MOST_GROWTH * path.stat().st_size
        with _open(path) as file:
            n_read = 0
            for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE + 1), ""), start=1):
                n_read += len(line)
                if n_read > most:
                    raise ModelFileError(
                        f"{path} unpacks to more than {_MOST_GROWTH} times its size, as no texts do",
                        hint="get it from elsewhere, or leave it out",
                    )
                if len(line) > _LONGEST_LINE:
                    raise ModelFileError(
                        f"line {number} of {path} has more than {_LONGEST_LINE >> 20} million characters",
                        hint="write one JSON object per line, and longer texts in parts",
                    )
                record = parse_json(line)
                if not _is_record(record):
                    raise ModelFileError(
                        f"line {number} of {path} is not a valid record",
                        hint='give it a "text", or "turns" that are objects with a "role" and a "text"',
                    )
                if not _is_unicode(record):
                    raise ModelFileError(
                        f"line {number} of {path} holds half of a surrogate pair, which is no text",
                        hint="write it anew from the original text",
                    )
                yield record
    except (OSError, ValueError, lzma.LZMAError, EOFError) as error:
        raise ModelFileError(f"{path} is not valid JSONL ({error})", hint="write one JSON object per line") from error


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    if "turns" not in record:
        return isinstance(record.get("text"), str)
    turns = record["turns"]
    # Evaluation sets may have turns that are plain strings.
    return isinstance(turns, list) and all(
        isinstance(turn, str)
        or (isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("text"), str))
        for turn in turns
    )


def _is_unicode(record: Mapping[str, Any]) -> bool:
    turns = record["turns"] if "turns" in record else (record["text"],)
    texts = [turn if isinstance(turn, str) else turn["text"] for turn in turns]
    try:
        "".join((*texts, str(record.get("source", "")))).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_documents(
    folder: Path, *, limits: Mapping[str, int], valid_share: float, skip: Iterable[str] = ()
) -> Iterator[Document]:
    """Yield all documents below a folder, in file order, each text once.

    Whether a record is held out depends on its words alone, so another order or selection of files does not move it
    between training and validation.

    Args:
        limits: bytes per source at most; the key ``""`` stands for sources not named.
        skip: words of records to leave out (an evaluation set), as ``words_of`` returns them.

    Raises:
        ModelFileError: there are no files, or one cannot be read.
    """
    paths = sorted(path for pattern in ("*.jsonl", "*.jsonl.xz") for path in folder.glob(pattern))
    if not paths:
        raise ModelFileError(f"{folder} holds no .jsonl or .jsonl.xz files", hint="give the folder of the texts")
    seen = {_digest(words) for words in skip}
    taken: dict[str, int] = {}
    for path in paths:
        for record in read_records(path):
            source = str(record.get("source", path.stem))
            words = words_of(record)
            digest = _digest(words)
            if digest in seen or not words.strip():
                continue
            limit = limits.get(source, limits.get("", 1 << 62))
            if taken.get(source, 0) >= limit:
                continue
            seen.add(digest)
            held_out = int.from_bytes(digest[:4], "little") < valid_share * (1 << 32)
            for document in _documents(record, source, held_out, Random(digest)):
                taken[source] = taken.get(source, 0) + document.n_bytes
                yield document
                if taken[source] >= limit:
                    break


def words_of(record: Mapping[str, Any]) -> str:
    """Return all words of a record."""
    return "\n".join(turn["text"] for turn in record["turns"]) if "turns" in record else str(record["text"])


def spans_of(turns: Iterable[Mapping[str, str]], *, answer: bool = False) -> tuple[Span, ...]:
    """Return a conversation as the template writes it; ``answer`` adds the head of the next answer."""
    spans: list[Span] = []
    for turn in turns:
        user = turn["role"] != "assistant"
        spans += [
            Span(f"<|im_start|>{'user' if user else 'assistant'}\n", "head", special=True),
            Span(turn["text"], "user" if user else "text"),
            Span("<|im_end|>", "user" if user else "text", special=True),
            Span("\n", "head"),
        ]
    if answer:
        spans.append(Span("<|im_start|>assistant\n", "head", special=True))
    return tuple(spans)


def clean(text: str, names: tuple[str, str] = ("Anna", "Tom")) -> str:
    """Return the text with plain quotation marks, names instead of placeholders, and no names of special tokens.

    Runs of spaces become one, except for indentation.
    """
    text = text.translate(_SIGNS).replace("<|", "< |")
    text = _PLACEHOLDER.sub(lambda found: names[found.group(1) == "2"], text)
    return _BLANKS.sub("\n\n", _INNER.sub(" ", _TRAILING.sub("", text))).strip()


def _documents(record: Mapping[str, Any], source: str, held_out: bool, random: Random) -> Iterator[Document]:
    first, second = random.sample(_NAMES, 2)
    if "turns" in record:
        turns = [{"role": turn["role"], "text": clean(turn["text"], (first, second))} for turn in record["turns"]]
        turns = [turn for turn in turns if turn["text"]]
        if any(turn["role"] == "assistant" for turn in turns):
            yield _document(source, spans_of(turns), held_out)
        return
    text = clean(record["text"])
    if source in _STORIES:
        # As an answer; one in four as plain text, for users who begin a story themselves.
        if random.random() < 0.75:
            request = request_for(text, random)
            turns = [{"role": "user", "text": request}, {"role": "assistant", "text": text}]
            yield _document(source, spans_of(turns), held_out)
        else:
            yield _document(source, (Span(text, "text"),), held_out)
        return
    parts = list(_parts(text))
    for number, part in enumerate(parts):
        yield _document(source, (Span(part, "text"),), held_out, whole=number + 1 == len(parts))


def _document(source: str, spans: tuple[Span, ...], held_out: bool, *, whole: bool = True) -> Document:
    n_bytes = sum(len(span.text.encode()) for span in spans if span.kind != "head" and not span.special)
    return Document(source, spans, whole, n_bytes, held_out)


def _parts(text: str) -> Iterator[str]:
    """Yield a long text cut between paragraphs into parts that fit a training row."""
    part = ""
    for paragraph in text.split("\n\n"):
        if part and len(part) + len(paragraph) > _PART_CHARACTERS:
            yield part
            part = ""
        part = f"{part}\n\n{paragraph}" if part else paragraph
    if part:
        yield part


def _digest(words: str) -> bytes:
    return blake2b(" ".join(words.split()).lower().encode("utf-8", "replace"), digest_size=16).digest()


def _open(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return cast(TextIO, lzma.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")
