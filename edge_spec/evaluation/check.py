"""Proof by trying: every way to speculate writes the tokens that plain decoding writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge_spec.model import TextModel
from edge_spec.speculation.loop import Round

__all__ = ["Comparison", "RandomPolicy", "Unchecked", "check"]


class RandomPolicy:
    """Drafts a random number of tokens, 0 to ``most``, in every round: text must not depend on it."""

    def __init__(self, most: int, seed: int = 0) -> None:
        self._most = most
        self._random = random.Random(seed)

    def limit(self) -> int:
        return self._random.randint(0, self._most)

    def learn(self, done: Round) -> None:
        """Random numbers learn nothing."""


@dataclass(frozen=True)
class Unchecked:
    """A mode that the model could not be opened in, so nothing is proven about it."""

    mode: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One prompt in one mode against plain decoding.

    Attributes:
        first_difference: index of the first token that differs; None where all are equal.
        n_tokens: tokens written.
        mean_length: mean accepted length, the bonus included.
    """

    mode: str
    prompt: int
    temperature: float
    first_difference: int | None
    n_tokens: int
    mean_length: float


def check(
    open_model: Callable[[str], TextModel],
    prompts: Sequence[str],
    *,
    modes: Sequence[str],
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    max_tokens: int = 96,
    seed: int = 1,
    raw: bool = False,
    ignore_eos: bool = False,
    **sampling: Any,
) -> Iterator[Comparison | Unchecked | str]:
    """Write every prompt at every temperature in every mode and compare with mode ``off``.

    Prompts that do not fit the context together with one more token are left out.

    Args:
        open_model: opens the model in the mode of that name.
        sampling: further fields of ``SamplerSettings``.

    Yields:
        The models' notes, modes that could not be had, and the comparisons as they are made.
    """
    grid = [(number, temperature) for number in range(len(prompts)) for temperature in temperatures]
    plain: dict[tuple[int, float], list[int]] = {}
    for mode in ("off", *(mode for mode in modes if mode != "off")):
        with open_model(mode) as model:
            yield from (f"{mode}: {note}" for note in model.notes)
            if mode not in ("off", "auto", model.mode):
                yield Unchecked(mode)
                continue
            for number, temperature in grid:
                tokens = model.prompt_of(prompts[number], raw=raw)
                if len(tokens) >= model.n_ctx:
                    continue
                generation = model.generate(
                    tokens=tokens,
                    max_tokens=max_tokens,
                    seed=seed + number,
                    temperature=temperature,
                    ignore_eos=ignore_eos,
                    **sampling,
                )
                generation.read()
                if mode == "off":
                    plain[number, temperature] = generation.token_ids
                    continue
                yield Comparison(
                    mode=mode,
                    prompt=number,
                    temperature=temperature,
                    first_difference=_first_difference(plain[number, temperature], generation.token_ids),
                    n_tokens=len(generation.token_ids),
                    mean_length=generation.statistics.mean_length,
                )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    if list(a) == list(b):
        return None
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
