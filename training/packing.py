"""Token ids on disk, and the rows that training reads.

Ids take 14 bits. The two bits above say what is learned: ``HEAD`` marks the frames of messages and everything else
that no reply contains, ``USER`` the words of a user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.errors import BAD_RECORD, ModelFileError
from edge_spec.foreign import parse_json
from edge_spec.training.corpus import Document
from edge_spec.training.vocabulary import END, TextEncoder

__all__ = ["HEAD", "ID", "USER", "Corpus", "Rows", "prepare"]

HEAD, USER, ID = 0x8000, 0x4000, 0x3FFF
_FLAGS = {"head": HEAD, "user": USER, "text": 0}
_SIDES = ("train", "valid")

Rows = npt.NDArray[np.uint16]
"""Training rows, ``[n, row]``: ids with flags."""


def prepare(documents: Iterable[Document], encoder: TextEncoder, folder: Path) -> dict[str, dict[str, int]]:
    """Write the token ids of documents; returns documents, tokens and bytes per source."""
    tokens: dict[str, list[Rows]] = {side: [] for side in _SIDES}
    sources: dict[str, list[int]] = {side: [] for side in _SIDES}
    sizes: dict[str, list[int]] = {side: [] for side in _SIDES}
    names: dict[str, int] = {}
    counts: dict[str, dict[str, int]] = {}
    for some in _batches(documents, 512):
        encoded = iter(encoder.encode_spans([span for document in some for span in document.spans]))
        for document in some:
            parts = [np.array(next(encoded), np.uint16) | np.uint16(_FLAGS[span.kind]) for span in document.spans]
            parts.append(np.array([END if document.whole else END | HEAD], np.uint16))
            side = _SIDES[document.held_out]
            tokens[side].append(np.concatenate(parts))
            sources[side].append(names.setdefault(document.source, len(names)))
            sizes[side].append(document.n_bytes)
            count = counts.setdefault(document.source, dict.fromkeys(("documents", "tokens", "bytes", "held_out"), 0))
            count["documents"] += 1
            count["tokens"] += len(tokens[side][-1])
            count["bytes"] += document.n_bytes
            count["held_out"] += document.held_out
    folder.mkdir(parents=True, exist_ok=True)
    for side in _SIDES:
        lengths = [len(each) for each in tokens[side]]
        np.save(folder / f"{side}_tokens.npy", np.concatenate([*tokens[side], np.zeros(0, np.uint16)]))
        np.save(folder / f"{side}_offsets.npy", np.cumsum([0, *lengths], dtype=np.int64))
        np.save(folder / f"{side}_sources.npy", np.array(sources[side], np.uint8))
        np.save(folder / f"{side}_bytes.npy", np.array(sizes[side], np.int64))
    # Written last: a folder that has it is complete.
    (folder / "corpus.json").write_text(json.dumps({"sources": counts}, indent=2) + "\n", encoding="utf-8")
    return counts


@dataclass(frozen=True)
class _Part:
    """A document, or a part of one that is longer than a row."""

    begin: int
    end: int


class Corpus:
    """A prepared corpus.

    Raises:
        ModelFileError: the folder does not hold one.
    """

    def __init__(self, folder: Path, *, row: int, weights: Mapping[str, float], seed: int) -> None:
        try:
            self.sources: dict[str, dict[str, int]] = parse_json((folder / "corpus.json").read_text("utf-8"))["sources"]
        except (OSError, *BAD_RECORD) as error:
            raise ModelFileError(f"{folder} holds no prepared corpus", hint="run the stage prepare first") from error
        self._folder, self.row, self._seed = folder, row, seed
        weight = [weights.get(name, 1.0) for name in self.sources]
        self._weights = np.array(weight)[np.load(folder / "train_sources.npy")]
        self._epoch = (-1, np.zeros((0, row), np.uint16))
        self.epoch_rows = len(self._rows_of(0))

    def batch(self, first: int, n: int) -> Rows:
        """Rows ``first`` to ``first + n`` of the endless training text, ``[n, row]``: one epoch after the other."""
        out = np.empty((n, self.row), np.uint16)
        for place in range(n):
            epoch, number = divmod(first + place, self.epoch_rows)
            rows = self._rows_of(epoch)
            out[place] = rows[number % len(rows)]
        return out

    def valid(self, max_rows: int) -> tuple[Rows, float]:
        """Held-out documents in about ``max_rows`` rows, always the same, and the bytes of words per learned token."""
        tokens, offsets = self._load("valid")
        order = np.random.default_rng(0).permutation(len(offsets) - 1)
        lengths = np.diff(offsets)[order]
        order = order[: max(1, int(np.searchsorted(np.cumsum(lengths), max_rows * self.row)))]
        n_bytes = int(np.load(self._folder / "valid_bytes.npy")[order].sum())
        rows = self._pack(tokens, offsets, order)
        return rows, n_bytes / max(1, int(np.count_nonzero((rows & HEAD) == 0)))

    def _rows_of(self, epoch: int) -> Rows:
        if self._epoch[0] != epoch:
            tokens, offsets = self._load("train")
            random = np.random.default_rng((self._seed, epoch))
            # A weight of 2.3: every record twice, and a random three tenths of them a third time.
            times = np.floor(self._weights + random.random(len(self._weights))).astype(np.int64)
            order = random.permutation(np.repeat(np.arange(len(times)), times))
            rows = self._pack(tokens, offsets, order)
            self._epoch = (epoch, rows[random.permutation(len(rows))])
        return self._epoch[1]

    def _load(self, side: str) -> tuple[Rows, npt.NDArray[np.int64]]:
        tokens = np.load(self._folder / f"{side}_tokens.npy", mmap_mode="r")
        return tokens, np.load(self._folder / f"{side}_offsets.npy")

    def _pack(self, tokens: Rows, offsets: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> Rows:
        """Best fit: each document goes into the fullest row that has room for it, so that only documents longer than a
        row are cut (Ding et al., "Fewer Truncations Improve Language Modeling", arXiv 2404.10830)."""
        row = self.row
        packed: list[list[_Part]] = []
        with_room: list[list[int]] = [[] for _ in range(row + 1)]
        rooms = 0  # bit r: some row has room for r tokens
        for part in _parts(offsets, order, row):
            length = part.end - part.begin
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                number = with_room[room].pop()
                if not with_room[room]:
                    rooms &= ~(1 << room)
                packed[number].append(part)
            else:
                room, number = row, len(packed)
                packed.append([part])
            if room > length:
                with_room[room - length].append(number)
                rooms |= 1 << (room - length)
        out = np.full((len(packed), row), END | HEAD, np.uint16)
        for number, parts in enumerate(packed):
            place = 0
            for part in parts:
                length = part.end - part.begin
                out[number, place : place + length] = tokens[part.begin : part.end]
                place += length
        return out


def _batches(documents: Iterable[Document], n: int) -> Iterator[list[Document]]:
    rest = iter(documents)
    while some := list(islice(rest, n)):
        yield some


def _parts(offsets: npt.NDArray[np.int64], order: npt.NDArray[np.int64], row: int) -> Iterator[_Part]:
    bounds = offsets.tolist()
    for document in order.tolist():
        begin, end = bounds[document], bounds[document + 1]
        for first in range(begin, end, row):
            yield _Part(first, min(first + row, end))
