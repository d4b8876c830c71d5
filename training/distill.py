"""Distillation: smaller models learn the target's whole distribution at every token, on its own text and on the corpus.

A draft is accepted when it is what the target picks, on text that the target has written. So drafters are trained on
such text (Zhou et al., "DistillSpec", arXiv 2310.08461), towards the distributions of the target in its file, that is
with its 4-bit weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edge_spec.training.checkpoint import whole_file
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.head import summed_divergence
from edge_spec.training.model import Llama
from edge_spec.training.objective import Alternation, TextLoss, targets, to_device
from edge_spec.training.packing import HEAD, ID, USER, Corpus, Rows
from edge_spec.training.precision import autocast, works_in_16_bits
from edge_spec.training.settings import Sampling

__all__ = ["TeacherLoss", "inherit_embedding", "prompts", "read_samples", "write", "write_samples"]

_TEMPERATURES = (0.0, 0.8, 1.0)
_GOLDEN = 0.6180339887498949


@torch.no_grad()
def write(model: Llama, prompts: Rows, new: int, temperatures: Tensor, *, seed: int, device: str) -> Rows:
    """Prompts of equal length, each continued by ``new`` tokens of the model, ``[n, prompt + new]``.

    Args:
        temperatures: of each row, ``[n]``; 0 picks the likeliest token.
    """
    generator = torch.Generator(device).manual_seed(seed)
    given = to_device(prompts, device) & ID
    n, n_prompt = given.shape
    temperature = temperatures.to(device)[:, None]
    out = torch.empty((n, n_prompt + new), dtype=torch.int64, device=device)
    out[:, :n_prompt] = given
    dtype = torch.bfloat16 if works_in_16_bits(device) else torch.float32
    with autocast(device):
        cache = model.cache(n, n_prompt + new, dtype)
        x, matrix = model.hidden(given, cache)
        for place in range(n_prompt, n_prompt + new):
            logits = functional.linear(x[:, -1], matrix.to(x.dtype)).float()
            uniform = torch.rand(logits.shape, generator=generator, device=device).clamp_(1e-10, 1 - 1e-7)
            # The arg max with Gumbel noise is one draw from the distribution; without noise it is the greedy choice.
            out[:, place] = (logits - temperature * torch.log(-torch.log(uniform))).argmax(-1)
            if place + 1 < n_prompt + new:
                x, matrix = model.hidden(out[:, place : place + 1], cache)
    return out.cpu().numpy().astype(np.uint16)


def prompts(corpus: Corpus, sampling: Sampling, batch: int, seed: int) -> Rows:
    """Return the training text that a batch of samples begins with, ``[batch, prompt]``.

    Three of four end where an answer begins, the others anywhere.
    """
    random = np.random.default_rng((seed, batch))
    text = corpus.batch(int(random.integers(corpus.epoch_rows)), 8 * sampling.batch * sampling.prompt // corpus.row + 8)
    flat = text.reshape(-1)
    # An answer begins where a frame ends and no words of a user follow.
    answers = (
        np.flatnonzero(((flat[:-1] & HEAD) != 0) & ((flat[1:] & (HEAD | USER)) == 0) & ((flat[:-1] & ID) != 0)) + 1
    )
    answers = answers[answers >= sampling.prompt]
    ends = random.integers(sampling.prompt, len(flat), sampling.batch)
    if len(answers):
        chosen = random.random(sampling.batch) < 0.75
        ends[chosen] = random.choice(answers, int(chosen.sum()))
    return flat[ends[:, None] - np.arange(sampling.prompt, 0, -1)]


def write_samples(
    target: Llama,
    corpus: Corpus,
    sampling: Sampling,
    folder: Path,
    *,
    seed: int,
    device: str,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Let the target write all samples, a file per batch; batches that exist already are kept.

    Raises:
        TimeIsUp: the time limit is reached.
    """
    target.round_weights()
    temperatures = torch.tensor([_TEMPERATURES[number % 3] for number in range(sampling.batch)])
    n_batches = -(-sampling.rows // sampling.batch)
    for batch in range(n_batches):
        path = folder / f"{batch:04d}.npy"
        if path.is_file():
            continue
        if clock.over:
            raise TimeIsUp(f"{batch} of {n_batches} batches of samples are written")
        began_s = clock.elapsed_s
        begin = prompts(corpus, sampling, batch, seed)
        rows = write(target, begin, sampling.new, temperatures, seed=(seed << 20) + batch, device=device)
        rows[:, : sampling.prompt] = begin
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, rows)
        took_s = clock.elapsed_s - began_s
        say(
            f"samples: batch {batch + 1} of {n_batches}, {sampling.batch * sampling.new / took_s:,.0f} tokens/s, "
            f"{took_s * (n_batches - batch - 1) / 60:.1f} min left"
        )


def read_samples(folder: Path) -> Rows:
    """Return all samples, ``[n, prompt + new]``."""
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


@torch.no_grad()
def inherit_embedding(embedding: Tensor, model: Llama) -> None:
    """Start from the target's embedding, projected onto its main directions.

    Input and output share the embedding, so a smaller model knows from the beginning which tokens are alike, rare ones
    included.

    Args:
        embedding: rows of the tokens that the model knows, ``[n_vocab, width of the target]``.
    """
    matrix = embedding.detach().float()
    _, directions = torch.linalg.eigh(matrix.T @ matrix)  # by ascending size
    n = min(model.shape.n_embd, directions.shape[1])
    model.embedding[:, :n] = (matrix @ directions[:, -n:]).to(model.embedding.dtype)


@dataclass(frozen=True)
class TeacherLoss:
    """Kullback-Leibler divergence of the model's distributions from the target's, summed over the tokens, in nats.

    ``share`` of the steps read the target's samples, the others the training text. Samples are shuffled for every pass
    over them.
    """

    target: Llama
    text: TextLoss
    samples: Rows
    share: float
    seed: int

    def rows(self, step: int, tokens: int) -> Rows:
        kinds = Alternation(self.share, _GOLDEN)
        n_before = kinds.before(step)
        if not kinds.first(step):
            return self.text.rows(step - n_before, tokens)
        n = tokens // self.samples.shape[1]
        places = np.arange(n_before * n, (n_before + 1) * n)
        passes, numbers = places // len(self.samples), places % len(self.samples)
        out = np.empty((n, self.samples.shape[1]), np.uint16)
        for each in np.unique(passes):
            order = np.random.default_rng((self.seed, int(each))).permutation(len(self.samples))
            out[passes == each] = self.samples[order[numbers[passes == each]]]
        return out

    def learned(self, rows: Tensor) -> Tensor:
        return self.text.learned(rows)

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, matrix = model.hidden(rows & ID)
        with torch.no_grad():
            teacher_hidden, teacher_matrix = self.target.hidden(rows & ID)
        _, learned = targets(rows)
        return summed_divergence(hidden, matrix, teacher_hidden, teacher_matrix, learned), learned.sum()
