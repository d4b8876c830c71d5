"""The target's answers on disk, in portions: what is finished is never written again.

Portions of what the target has written are named by their numbers, those of what others wrote and it has read
``read-`` and a number. A portion is an ``.npz``: ``tokens`` of all texts one after the other, each a prompt and an
answer; ``lengths`` and ``prompts``, the tokens of each text and those of its prompt; and for every token of an answer
``likeliest`` and ``logs``, ``[n, 64]``. Beside it may be an ``.npy`` with the hidden states of all tokens,
``[tokens, width]``, for a head.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.errors import DiskFull
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.training.checkpoint import arrays_of, ids_type, whole_file
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.drafter.pack import users_frame
from edge_spec.training.drafter.settings import MakeSettings
from edge_spec.training.drafter.writing import N_LIKELIEST, TEMPERATURES, Answer, AnswerWriter, Question

__all__ = [
    "Asker",
    "Portion",
    "disk_bytes",
    "hidden_path",
    "portion_at",
    "portion_number",
    "portion_paths",
    "portions_in",
    "read_paths",
    "read_portion_path",
    "require_disk",
    "save_portion",
    "write_portions",
]

_PROMPTS = 32
"""Prompts of a portion."""

_READ = "read-"

_OWN_EVERY, _OWN_TOKENS = 3, 48
_TOKEN_BYTES = 12 * N_LIKELIEST
"""What a token of an answer takes in portions and in what is trained on, at most."""


@dataclass(frozen=True)
class Portion:
    """What a portion holds; see the top of this file.

    Attributes:
        by_others: whether the target has only read its answers.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    prompts: npt.NDArray[Any]
    likeliest: npt.NDArray[Any]
    logs: npt.NDArray[Any]
    by_others: bool = False

    @property
    def asked(self) -> list[list[int]]:
        """The prompt of each text, in token ids."""
        begins = np.cumsum([0, *self.lengths[:-1]])
        spans = zip(begins.tolist(), self.prompts.tolist(), strict=True)
        return [self.tokens[begin : begin + n].tolist() for begin, n in spans]


def portion_paths(folder: Path) -> list[Path]:
    """Return the files of all portions of a folder, in order."""
    return sorted(folder.glob("*.npz"))


def read_paths(folder: Path) -> list[Path]:
    """Return the files of the portions that the target has read, in order."""
    return sorted(folder.glob(f"{_READ}*.npz"))


def read_portion_path(folder: Path, number: int) -> Path:
    """Return where such a portion belongs."""
    return folder / f"{_READ}{number:05d}.npz"


def portion_number(path: Path) -> int:
    """Return the number in the name of a portion."""
    return int(path.stem.removeprefix(_READ))


def portion_at(path: Path) -> Portion:
    """Return a portion.

    Raises:
        ModelFileError: it is damaged.
    """
    with arrays_of(path, "answers", hint="restore it, or begin again in another folder") as found:
        return Portion(**found, by_others=path.name.startswith(_READ))


def portions_in(folder: Path) -> Iterator[Portion]:
    """Return all portions of a folder, in order."""
    return map(portion_at, portion_paths(folder))


def hidden_path(portion: Path) -> Path:
    """Return where the hidden states of a portion are."""
    return portion.with_suffix(".hidden.npy")


def disk_bytes(n_tokens: int, hidden_bytes: int = 0) -> int:
    """Return what answers of so many tokens take on the disk, with everything made from them, at most.

    Args:
        hidden_bytes: of the hidden states that are kept of a token.
    """
    return n_tokens * (_TOKEN_BYTES + hidden_bytes)


def require_disk(folder: Path, n_tokens: int, hidden_bytes: int = 0) -> None:
    """Refuse to begin what the disk has no room for.

    Args:
        hidden_bytes: of the hidden states that are kept of a token.

    Raises:
        DiskFull: so many tokens do not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = disk_bytes(n_tokens, hidden_bytes), shutil.disk_usage(folder).free
    if needed > free:
        hint = f"lower --tokens ({free // disk_bytes(1, hidden_bytes):,} fit), or use a folder on another disk"
        raise DiskFull(f"what the target writes, in {folder},", needed_bytes=needed, available_bytes=free, hint=hint)


class Asker:
    """Asks a target: prompts out of texts, and questions of its own.

    Args:
        prompts: the texts, asked in turn again and again: each answer has a seed of its own.
    """

    def __init__(self, writer: AnswerWriter, builder: PromptBuilder, prompts: Sequence[str], seed: int) -> None:
        self._writer = writer
        self._builder = builder
        self._prompts = prompts
        self._seed = seed
        self._header, _ = users_frame(builder)

    def prompts(self, numbers: Sequence[int]) -> list[list[int]]:
        """Token ids of the prompts of these numbers."""
        texts = {number: self._prompts[number % len(self._prompts)] for number in numbers}
        own = [number for number in numbers if self._header and number % _OWN_EVERY == _OWN_EVERY - 1]
        questions = [Question(self._header, self._seed + 7919 * number, (1.0,)) for number in own]
        for number, (asked,) in zip(own, self._writer.answers(questions, max_tokens=_OWN_TOKENS), strict=True):
            texts[number] = self._builder.detokenize(asked.tokens).strip() or texts[number]
        return [self._builder.tokens_of(text) for text in texts.values()]


def write_portions(
    folder: Path,
    asker: Asker,
    writer: AnswerWriter,
    settings: MakeSettings,
    *,
    n_vocab: int,
    longest: int,
    clock: Clock,
    say: Callable[[str], None],
) -> int:
    """Write portions until the answers have as many tokens as are asked for; returns how many they have.

    Args:
        longest: the most tokens of a prompt; longer ones are left out.

    Raises:
        TimeIsUp: the time limit is reached.
    """
    done, asked = 0, set[tuple[int, ...]]()
    written = [path for path in portion_paths(folder) if path not in read_paths(folder)]
    for portion in map(portion_at, written):
        done += len(portion.logs)
        asked.update(tuple(prompt) for prompt in portion.asked)
    number = len(written)
    began, began_s = done, clock.elapsed_s
    while done < settings.tokens:
        if clock.over:
            raise TimeIsUp(f"the target has written {done:,} of {settings.tokens:,} tokens")
        numbers = range(number * _PROMPTS, (number + 1) * _PROMPTS)
        prompts = zip(numbers, asker.prompts(numbers), strict=True)
        questions = []
        for each, prompt in prompts:
            if 1 < len(prompt) <= longest:
                # A greedy answer would be the same again.
                again = tuple(prompt) in asked
                temperatures = [t for t in TEMPERATURES if t > 0] if again else TEMPERATURES
                questions.append(Question(prompt, settings.seed * 1_000_003 + each, temperatures))
                asked.add(tuple(prompt))
        answers = writer.answers(questions, max_tokens=settings.answer_tokens)
        texts = [
            (question.prompt, answer) for question, those in zip(questions, answers, strict=True) for answer in those
        ]
        done += save_portion(folder / f"{number:05d}.npz", texts, n_vocab)
        number += 1
        speed = (done - began) / max(1e-9, clock.elapsed_s - began_s)
        left_min = max(0, settings.tokens - done) / speed / 60
        say(f"answers: {done:,} of {settings.tokens:,} tokens, {speed:,.0f} tokens/s, {left_min:.1f} min left")
    return done


def save_portion(path: Path, texts: Sequence[tuple[Sequence[int], Answer]], n_vocab: int) -> int:
    """Write a portion of prompts and their answers; returns how many tokens the answers have."""
    narrow = ids_type(n_vocab)
    n = sum(len(answer.tokens) for _, answer in texts)
    likeliest = np.zeros((n, N_LIKELIEST), narrow)
    logs = np.full((n, N_LIKELIEST), -np.inf, np.float16)
    place = 0
    for _, answer in texts:
        for ids, values in zip(answer.likeliest, answer.logs, strict=True):
            likeliest[place, : len(ids)], logs[place, : len(ids)] = ids, values
            place += 1
    _save_hidden(hidden_path(path), [answer for _, answer in texts])
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            tokens=np.array([token for prompt, answer in texts for token in (*prompt, *answer.tokens)], narrow),
            lengths=np.array([len(prompt) + len(answer.tokens) for prompt, answer in texts], np.int32),
            prompts=np.array([len(prompt) for prompt, _ in texts], np.int32),
            likeliest=likeliest,
            logs=logs,
        )
    return n


def _save_hidden(path: Path, answers: Sequence[Answer]) -> None:
    """Write the hidden states of all tokens if the answers have them; zeros for the last one of each answer."""
    found = [answer.hidden for answer in answers if answer.hidden is not None]
    if found:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([np.pad(rows, ((0, 1), (0, 0))) for rows in found]))
