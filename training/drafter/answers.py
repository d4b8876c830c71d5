"""From portions to what a drafter is trained on: its vocabulary, texts in its own ids, and what it should expect."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.errors import BAD_RECORD, ModelFileError
from edge_spec.foreign import parse_json
from edge_spec.tokens.kept_tokens import KeptTokens
from edge_spec.training.checkpoint import whole_file
from edge_spec.training.drafter.portions import Portion, portions_in
from edge_spec.training.drafter.writing import N_LIKELIEST

__all__ = ["PROMPT_WEIGHT", "Answers", "choose_tokens", "divided", "prepare", "read_answers"]

PROMPT_WEIGHT = 0.1
"""A token that is only ever read needs an embedding, too, but is never drafted."""

_VALID_SHARE = 100
"""One text of so many is held out."""

_SUMMARY = "prepared.json"

Texts = npt.NDArray[np.int64]
"""Numbers of texts."""


def choose_tokens(
    portions: Iterable[Portion], n_vocab: int, n_kept: int, known: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.int64], float]:
    """Return the tokens that a target writes most, ascending, and the share of its answers' tokens that are among them.

    If ``known`` is given, these are returned, with their share.

    What it might have written in a place counts by its chance: a sum of chances is closer to the target's own
    frequencies than a count of what was drawn. What others wrote in its place does not count.
    """
    weight, written = np.zeros(n_vocab), np.zeros(n_vocab)
    for portion in portions:
        answered = _answered(portion)
        if not portion.by_others:
            written += np.bincount(portion.tokens[answered], minlength=n_vocab)
        weight += PROMPT_WEIGHT * np.bincount(portion.tokens[~answered], minlength=n_vocab)
        chances = np.exp(portion.logs.astype(np.float64)).ravel()
        weight += np.bincount(portion.likeliest.ravel(), weights=chances, minlength=n_vocab)
    weight += written
    # The lowest ids first among equals: in most vocabularies these are the most frequent.
    kept = np.sort(np.argsort(-weight, kind="stable")[:n_kept]) if known is None else known
    return kept, float(written[kept].sum() / max(1.0, written.sum()))


def _answered(portion: Portion) -> npt.NDArray[np.bool_]:
    """Return which tokens of a portion belong to answers."""
    ends = np.cumsum(portion.lengths)
    place = np.arange(len(portion.tokens)) - np.repeat(ends - portion.lengths, portion.lengths)
    answered: npt.NDArray[np.bool_] = place >= np.repeat(portion.prompts, portion.lengths)
    return answered


@dataclass(frozen=True)
class Answers:
    """What is trained on.

    Attributes:
        kept: the target's tokens that the drafter knows, ``[n_kept]``.
        tokens: of all texts one after the other, in the drafter's ids, ``[n]``.
        begins: where each text begins, and at last where the last one ends.
        expected: of each token the row of ``columns`` and ``chances`` that says what follows it; -1 where nothing is
            to be learned.
        columns, chances: what the target expected, in the drafter's ids, ``[n_answered, 65]``; the last one is what
            it does not know.
        coverage: share of the answers' tokens that it knows.
    """

    kept: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int64]
    expected: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    chances: npt.NDArray[np.float16]
    coverage: float


def prepare(
    portions: Path, folder: Path, *, n_vocab: int, n_kept: int, known: npt.NDArray[np.int64] | None = None
) -> None:
    """Write what is trained on; nothing if it is there already.

    Args:
        known: the target's tokens that a head knows which learns on; its vocabulary stays.
    """
    if (folder / _SUMMARY).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    chosen, coverage = choose_tokens(portions_in(portions), n_vocab, n_kept, known)
    kept = KeptTokens(chosen, n_vocab)
    n = sum(len(portion.logs) for portion in portions_in(portions))
    shape = (n, N_LIKELIEST + 1)
    columns = np.lib.format.open_memmap(folder / "columns.npy", "w+", np.int32, shape)
    chances = np.lib.format.open_memmap(folder / "chances.npy", "w+", np.float16, shape)
    tokens, lengths, expected, place = [], [], [], 0
    n_read, texts_read = 0, 0
    for portion in portions_in(portions):
        rows = slice(place, place + len(portion.logs))
        chance = np.exp(portion.logs.astype(np.float32))
        columns[rows, :-1], columns[rows, -1] = kept.columns[portion.likeliest], len(kept)
        chances[rows, :-1] = chance
        chances[rows, -1] = np.maximum(0.0, 1.0 - chance.sum(1))
        tokens.append(kept.columns[portion.tokens])
        lengths.append(portion.lengths)
        answered = _answered(portion)
        row = np.full(len(answered), -1, np.int32)
        # A row belongs to the token before the one that it is about.
        row[np.flatnonzero(answered) - 1] = np.arange(place, rows.stop)
        expected.append(row)
        place = rows.stop
        if portion.by_others:
            n_read, texts_read = n_read + len(portion.logs), texts_read + len(portion.lengths)
    for array in (columns, chances):
        array.flush()
    np.save(folder / "kept.npy", kept.ids)
    np.save(folder / "tokens.npy", np.concatenate(tokens))
    np.save(folder / "begins.npy", np.cumsum([0, *np.concatenate(lengths)], dtype=np.int64))
    np.save(folder / "expected.npy", np.concatenate(expected))
    # Written last: a folder that has it is complete.
    summary = {
        "answer_tokens": n - n_read,
        "texts": sum(map(len, lengths)) - texts_read,
        "read_tokens": n_read,
        "read_texts": texts_read,
        "coverage": coverage,
    }
    with whole_file(folder / _SUMMARY) as temporary:
        temporary.write_text(json.dumps(summary) + "\n", encoding="utf-8")


def read_answers(folder: Path) -> Answers:
    """Return what ``prepare`` has written.

    Raises:
        ModelFileError: it is not there, or damaged.
    """
    try:
        coverage = float(parse_json((folder / _SUMMARY).read_text("utf-8"))["coverage"])
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r" if name in ("columns", "chances") else None)
            for name in ("kept", "tokens", "begins", "expected", "columns", "chances")
        }
    except (OSError, *BAD_RECORD) as error:
        raise ModelFileError(f"{folder} is damaged ({error})", hint="remove that folder and run again") from error
    return Answers(coverage=coverage, **arrays)


def divided(answers: Answers, seed: int) -> tuple[Texts, Texts]:
    """Texts to learn from, and held-out ones; all answers to a prompt are on the same side.

    A model that has learned one answer to a prompt knows half of the others, so these would say little of new prompts.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for text, (begin, end) in enumerate(pairwise(answers.begins.tolist())):
        # What is expected first is expected of the last token of the prompt.
        learned = answers.expected[begin:end] >= 0
        n_prompt = int(learned.argmax()) + 1
        by_prompt.setdefault(answers.tokens[begin : begin + n_prompt].tobytes(), []).append(text)
    prompts = list(by_prompt.values())
    order = np.random.default_rng(seed).permutation(len(prompts)).tolist()
    valid: list[int] = []
    while len(valid) < max(1, (len(answers.begins) - 1) // _VALID_SHARE):
        valid += prompts[order.pop()]
    learned_from = [text for prompt in order for text in prompts[prompt]]
    return np.array(learned_from or valid, np.int64), np.array(valid, np.int64)
