"""A head taught on an accelerator: the target writes answers there, and reads them again while the head learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_spec.models import ModelFile, kept_tokens
from edge_spec.tokens.kept_tokens import KeptTokens
from edge_spec.training.checkpoint import arrays_of, ids_type, whole_file
from edge_spec.training.clock import Clock
from edge_spec.training.drafter.answers import PROMPT_WEIGHT, Answers, divided
from edge_spec.training.drafter.heads import build_head, continue_head, start_head
from edge_spec.training.drafter.pack import Pack
from edge_spec.training.drafter.read_objective import ReadLoss
from edge_spec.training.drafter.rows import packed_whole
from edge_spec.training.drafter.torch_target import TorchTarget
from edge_spec.training.settings import Training
from edge_spec.training.train import Trainer

__all__ = ["Teaching", "Written", "own_question_tokens", "read_written", "until_loop", "write_answers"]

_HEATS = np.array([0.0, 0.6, 0.8, 1.0], np.float32)
_QUESTION_TOKENS, _LEAST_QUESTION, _OWN_SHARE = 64, 4, 4
"""For so many prompts there is one question more, which the target asks itself (Magpie, arXiv 2406.08464)."""

_PERIODS, _REPEATED = 64, 24
"""Text that repeats itself with a period of so many tokens at most, for so long, is learned from no further."""
_ROWS_AT_ONCE = 6144
_SORTED_TOGETHER = 16
"""Batches whose prompts are sorted by length, so that those of one batch are alike."""


@dataclass(frozen=True)
class Written:
    """Texts, each a prompt and an answer, in the target's ids.

    Attributes:
        tokens: of all texts, one after the other.
        lengths, prompts: the tokens of each text, and those of its prompt.
    """

    tokens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]

    @property
    def n_answered(self) -> int:
        """How many tokens the answers have."""
        return int(self.lengths.sum() - self.prompts.sum())

    @property
    def _begins(self) -> npt.NDArray[np.int64]:
        """Where texts begin, and where the last one ends."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @property
    def _places(self) -> npt.NDArray[np.int64]:
        """The place of each token in its text."""
        return np.arange(len(self.tokens)) - np.repeat(self._begins[:-1], self.lengths)

    def save(self, path: Path, n_vocab: int) -> None:
        """Write them to a file, which ``read_written`` reads."""
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                tokens=self.tokens.astype(ids_type(n_vocab)),
                lengths=self.lengths.astype(np.int32),
                prompts=self.prompts.astype(np.int32),
            )

    def most_written(self, n_vocab: int, n_kept: int) -> npt.NDArray[np.int64]:
        """Return the tokens that answers hold most often, ascending; a token of a prompt counts a tenth."""
        weights = np.where(self._places < np.repeat(self.prompts, self.lengths), PROMPT_WEIGHT, 1.0)
        counts = np.bincount(self.tokens, weights=weights, minlength=n_vocab)
        return np.sort(np.argsort(-counts, kind="stable")[:n_kept])

    def answers(self, kept: KeptTokens) -> Answers:
        """What a head learns from, without distributions: the target reads them again."""
        place = self._places
        from_prompt = np.repeat(self.prompts - 1, self.lengths)
        last = np.repeat(self.lengths - 1, self.lengths)
        learned = (place >= from_prompt) & (place < last)
        answered = (place > from_prompt) & (kept.columns[self.tokens] < len(kept))
        return Answers(
            kept=kept.ids,
            tokens=kept.columns[self.tokens].astype(np.int32),
            begins=self._begins,
            expected=np.where(learned, 0, -1).astype(np.int32),
            columns=np.zeros((0, 1), np.int32),
            chances=np.zeros((0, 1), np.float16),
            coverage=float(answered.sum() / max(1, self.n_answered)),
        )


def read_written(path: Path) -> Written:
    """Return what was saved.

    Raises:
        ModelFileError: it is damaged.
    """
    with arrays_of(path, "answers", hint="remove it and run again") as found:
        return Written(**{name: array.astype(np.int64) for name, array in found.items()})


def until_loop(tokens: Tensor) -> Tensor:
    """How many tokens of each row, ``[rows, n]``, come before it has said the same again and again for a while."""
    n = tokens.shape[1]
    found = torch.full((len(tokens),), n, device=tokens.device)
    for period in range(1, min(_PERIODS, n - 1) + 1):
        long = max(_REPEATED, 2 * period)
        if period + long > n:
            break
        again = (tokens[:, period:] == tokens[:, :-period]).int()
        sums = functional.pad(again.cumsum(1), (1, 0))
        whole = sums[:, long:] - sums[:, :-long] == long
        first = torch.where(whole.any(1), whole.int().argmax(1) + period + long, n)
        found = torch.minimum(found, first)
    return found


def write_answers(
    target: TorchTarget,
    pack: Pack,
    *,
    n_tokens: int,
    new: int,
    seed: int,
    memory_bytes: int,
    clock: Clock,
    say: Callable[[str], None],
    begun: Written | None = None,
) -> Written:
    """Let a target write answers until they have so many tokens, or the clock is over: one batch at least.

    Args:
        n_tokens: of all answers, those of ``begun`` among them.
        new: the most tokens of an answer.
        memory_bytes: for keys and values.
        begun: what an interrupted run has written.
    """
    rows = partial(_fitting_rows, target, memory_bytes=memory_bytes)
    prompts = pack.prompts
    # No number of a batch comes twice: there are no more batches than texts.
    first = 0 if begun is None else len(begun.lengths)
    at_once = rows(len(pack.before) + _QUESTION_TOKENS)
    prompts += _own_questions(target, pack, at_once, (seed << 20) + first, clock)
    say(f"prompts: {len(prompts):,}, of which {len(prompts) - len(pack.lengths):,} are the target's own")
    tokens = [] if begun is None else [begun.tokens]
    lengths: list[int] = [] if begun is None else begun.lengths.tolist()
    of_prompts: list[int] = [] if begun is None else begun.prompts.tolist()
    done = 0 if begun is None else begun.n_answered
    batches = _batches(prompts, rows, new, np.random.default_rng((seed, first)), greedy=begun is None)
    for number, (some, heats) in enumerate(batches, first):
        answers = target.write(some, heats, pack.ends, new=new, seed=(seed << 20) + number)
        for prompt, answer, at in zip(some, answers, _loops(answers, new, target.device), strict=True):
            text = np.array([*prompt, *answer[:at]], np.int64)
            tokens.append(text)
            lengths.append(len(text))
            of_prompts.append(len(prompt))
            done += len(text) - len(prompt)
        say(f"answers: {done:,} of {n_tokens:,} tokens, {len(lengths):,} texts")
        if done >= n_tokens or clock.over:
            break
    return Written(np.concatenate(tokens), np.array(lengths, np.int64), np.array(of_prompts, np.int64))


def own_question_tokens(pack: Pack) -> int:
    """Return the most tokens of a prompt whose user's words the target has written; 0 if there are none."""
    return len(pack.before) + _QUESTION_TOKENS + len(pack.after) if len(pack.before) else 0


def _own_questions(target: TorchTarget, pack: Pack, at_once: int, seed: int, clock: Clock) -> list[list[int]]:
    """Prompts whose user's words the target has written itself, after the header of a user's turn."""
    if not len(pack.before):
        return []
    before, after, ends = pack.before.tolist(), pack.after.tolist(), set(pack.ends.tolist())
    found: list[list[int]] = []
    wanted = len(pack.lengths) // _OWN_SHARE
    for number, first in enumerate(range(0, wanted, at_once)):
        if clock.over:
            break
        n = min(at_once, wanted - first)
        heats = np.ones(n, np.float32)
        # Another seed than those of answers.
        asked = target.write([before] * n, heats, pack.ends, new=_QUESTION_TOKENS, seed=-(seed + number + 1))
        found += [[*before, *each[:-1], *after] for each in asked if each[-1] in ends and len(each) >= _LEAST_QUESTION]
    return found


def _loops(answers: Sequence[Sequence[int]], new: int, device: str) -> list[int]:
    """How many tokens of each answer come before it loops."""
    # What is padded differs from place to place, so that it is no loop.
    padded = np.tile(-1 - np.arange(new), (len(answers), 1))
    for row, answer in zip(padded, answers, strict=True):
        row[: len(answer)] = answer
    found: list[int] = until_loop(torch.from_numpy(padded).to(device)).tolist()
    return found


def _fitting_rows(target: TorchTarget, columns: int, *, memory_bytes: int) -> int:
    """Return how many rows of so many columns fit."""
    return max(1, min(_ROWS_AT_ONCE, memory_bytes // (target.column_bytes * columns)))


def _batches(
    prompts: Sequence[list[int]],
    rows: Callable[[int], int],
    new: int,
    random: np.random.Generator,
    *,
    greedy: bool,
) -> Iterator[tuple[list[list[int]], npt.NDArray[np.float32]]]:
    """Prompts of similar lengths and temperatures for them, without end; at most one greedy answer to each."""
    while True:
        order = iter(random.permutation(len(prompts)).tolist())
        while some := list(islice(order, _SORTED_TOGETHER * rows(new))):
            batch: list[int] = []
            parts = []
            for number in sorted(some, key=lambda each: len(prompts[each])):
                if batch and len(batch) >= rows(len(prompts[number]) + new):
                    parts.append(batch)
                    batch = []
                batch.append(number)
            parts.append(batch)
            for part in (parts[each] for each in random.permutation(len(parts))):
                yield [prompts[each] for each in part], random.choice(_HEATS[0 if greedy else 1 :], len(part))
        greedy = False


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """The training of a head on texts that the target reads while it learns.

    Attributes:
        file: the target's.
        target: the same, in PyTorch.
        head: which learns on; None for one that has learned nothing.
        vocabulary: tokens of such a one, one of which stands for all that it does not know.
        folder: where the training is saved.
        passes: how often the texts are read at most.
        budget_s: seconds that the training may take.
        steps_ahead: draft steps that it is trained on.
    """

    file: ModelFile
    target: TorchTarget
    written: Written
    head: ModelFile | None
    vocabulary: int
    folder: Path
    passes: float
    budget_s: float | None
    steps_ahead: int
    learning_rate: float
    step_tokens: int
    row: int
    seed: int
    device: str
    clock: Clock
    say: Callable[[str], None]

    def run(self) -> npt.NDArray[np.int64]:
        """Train, and save the weights; returns the tokens that the head knows."""
        # Its weights know nothing of its vocabulary, whose rows are the target's: that of a head is chosen anew.
        before = None if self.head is None else kept_tokens(self.file, self.head)
        n_kept = self.vocabulary - 1 if before is None else len(before)
        kept = KeptTokens(self.written.most_written(self.file.n_vocab, n_kept), self.file.n_vocab)
        answers = self.written.answers(kept)
        learned, valid = divided(answers, self.seed)
        known = f"{answers.coverage:.2%} of their answers"
        if before is not None:
            known += f", {self.written.answers(before).coverage:.2%} with the tokens that it had"
        self.say(f"texts: {len(learned):,}; the head knows {known}")
        objective = ReadLoss(
            answers=answers,
            texts=learned,
            row=self.row,
            short_row=self.row,
            short_share=0.0,
            seed=self.seed,
            whole=True,
            steps=self.steps_ahead,
            target=self.target,
            ids=self.written.tokens,
        )
        steps = max(1, round(self.passes * len(self.written.tokens) / self.step_tokens))
        Trainer(
            build=lambda: build_head(self.file, kept.ids),
            start=partial(start_head, objective) if self.head is None else partial(continue_head, self.head),
            objective=objective,
            judge=objective,
            valid=packed_whole(answers.begins, valid, self.row)[:_VALID_ROWS],
            folder=self.folder,
            training=Training(
                tokens=steps * self.step_tokens,
                step_tokens=self.step_tokens,
                micro_tokens=self.step_tokens,
                learning_rate=self.learning_rate,
                warmup=min(50, -(-steps // 10)),
                budget_s=self.budget_s,
            ),
            seed=self.seed,
            device=self.device,
            clock=self.clock,
            say=self.say,
            valid_every=_VALID_EVERY,
        ).run()
        return kept.ids


_VALID_ROWS, _VALID_EVERY = 64, 500
