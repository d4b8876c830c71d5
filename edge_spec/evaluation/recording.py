"""What drafters would have drafted at every place of a text, to replay policies on: see benchmarks/replay_policy.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from edge_spec.model import TextModel
from edge_spec.sampling import Sampler
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.modes import Mode
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Recording", "record"]

_MOST = 10


@dataclass
class Recording:
    """What one drafter would have drafted in one reply.

    Attributes:
        drafter: its name.
        temperature: of the reply.
        truth: token ids that the target wrote.
        drafts: for each of them, the draft that would have been verified in its place.
        draft_s: seconds that all drafts took.
    """

    drafter: str
    temperature: float
    truth: list[int] = field(default_factory=list)
    drafts: list[Tree] = field(default_factory=list)
    draft_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Token ids, parents and values of each draft; values with four digits."""
        n_levels = sum(len(draft.counts_by_depth()) for draft in self.drafts if draft)
        return {
            "truth": self.truth,
            "drafts": [
                (draft.tokens, draft.parents, [round(value, 4) for value in draft.values]) for draft in self.drafts
            ],
            "step_s": self.draft_s / n_levels if n_levels else 0.0,
        }


class _Recorder(AdaptiveDrafter):
    """Asks every drafter in every round, and drafts nothing."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, AdaptivePolicy(most=_MOST))
        self._drafters = drafters
        self._drafted: list[tuple[Tree, float]] = []
        self.recordings: list[Recording] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        super().begin(prompt, sampler)
        self.recordings = [Recording(drafter.name, sampler.settings.temperature) for drafter in self._drafters]

    def limit(self, left: int) -> int:
        return _MOST

    def draft(self, limit: int) -> Tree:
        self._drafted = []
        for drafter in self._drafters:
            drafter.read()
            started = perf_counter()
            self._drafted.append((drafter.draft(limit), perf_counter() - started))
        return EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        drafted, self._drafted = self._drafted or [(EMPTY, 0.0)] * len(self._drafters), []
        for recording, (draft, seconds) in zip(self.recordings, drafted, strict=True):
            recording.truth += tokens
            # A round that a grammar drafted for has several tokens.
            recording.drafts += [draft, *([EMPTY] * (len(tokens) - 1))]
            recording.draft_s += seconds


def record(
    open_model: Callable[[Mode], TextModel],
    auto: Mode,
    prompts: Sequence[str],
    *,
    max_tokens: int = 128,
    seed: int = 1,
    on_run: Callable[[], None] = lambda: None,
    **generate: Any,
) -> Iterator[Recording]:
    """Let a model write plainly, and ask at every place what each of the drafters of ``auto`` would have drafted.

    Args:
        open_model: opens the model in a mode.
        auto: the mode that ``auto`` is for the models that are given.
        on_run: called after every reply.
        generate: further arguments of ``TextModel.generate``.
    """
    recorders: list[_Recorder] = []

    def build(models: Any) -> Drafter:
        drafter = auto.build(models)
        assert isinstance(drafter, AdaptiveDrafter)
        recorders.append(_Recorder(drafter.drafters))
        return recorders[-1]

    with open_model(replace(auto, build=build, limit=_MOST, adapts=False)) as model:
        for number, prompt in enumerate(prompts):
            reply = model.generate(prompt, max_tokens=max_tokens, seed=seed + number, **generate)
            reply.read()
            on_run()
            yield from recorders[-1].recordings if recorders else ()
