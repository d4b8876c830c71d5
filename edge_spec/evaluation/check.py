"""Compare every mode of speculation with plain decoding, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge_spec.errors import Sentence
from edge_spec.model import TextModel

__all__ = ["Comparison", "Unchecked", "check", "random_limits"]


def random_limits(max_drafted: int, seed: int = 0) -> Callable[[], int]:
    """Return limits of 0 to ``max_drafted`` tokens at random for every round: the text must not depend on them."""
    return partial(random.Random(seed).randint, 0, max_drafted)


@dataclass(frozen=True)
class Unchecked:
    """A mode in which the model could not be opened, so nothing was compared."""

    mode: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One reply in one mode, compared with plain decoding.

    Attributes:
        first_difference: index of the first token that differs; None if all are equal.
        n_tokens: tokens written.
        mean_length: mean accepted length, bonus tokens included.
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
    """Reply to every prompt at every temperature in every mode, and compare with mode ``off``.

    Prompts that leave no room for a token in the context are left out.

    Args:
        open_model: opens the model in a mode.
        sampling: further fields of ``SamplerSettings``.

    Yields:
        Notes of the models, modes that could not be opened, and comparisons as they are made.
    """
    grid = [(number, temperature) for number in range(len(prompts)) for temperature in temperatures]
    plain: dict[tuple[int, float], list[int]] = {}
    for mode in ("off", *(mode for mode in modes if mode != "off")):
        with open_model(mode) as model:
            yield from (Sentence("{mode}: {note}", mode=mode, note=note) for note in model.notes)
            if mode not in ("off", "auto", model.mode):
                yield Unchecked(mode)
                continue
            for number, temperature in grid:
                tokens = model.prompt_of(prompts[number], raw=raw)
                if len(tokens) >= model.n_ctx:
                    continue
                reply = model.generate(
                    tokens=tokens,
                    max_tokens=max_tokens,
                    seed=seed + number,
                    temperature=temperature,
                    ignore_eos=ignore_eos,
                    **sampling,
                )
                reply.read()
                if mode == "off":
                    plain[number, temperature] = reply.token_ids
                    continue
                yield Comparison(
                    mode=mode,
                    prompt=number,
                    temperature=temperature,
                    first_difference=_first_difference(plain[number, temperature], reply.token_ids),
                    n_tokens=len(reply.token_ids),
                    mean_length=reply.statistics.mean_length,
                )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    if list(a) == list(b):
        return None
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
