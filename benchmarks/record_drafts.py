"""Records what the drafters of ``auto`` would have drafted at every place of the model's own text.

    python benchmarks/record_drafts.py MODEL --out FOLDER [--prompts FILE] [--limit 8] [-n 128] [--temperature 0.8] ...

The options are those of ``edge-spec bench`` but for its modes and what it prints. FOLDER gets a file per drafter and
temperature, ``NAME-tTEMPERATURE.jsonl``, with a line per reply; ``replay_chooser.py`` replays the chooser on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import click

from edge_spec.cli.check import prompts_or_own
from edge_spec.cli.help import Count, Verb, option
from edge_spec.cli.options import load_arguments, max_tokens_option, model_options
from edge_spec.cli.reply_options import reply_arguments, sampler_options
from edge_spec.loading import load, possible_modes
from edge_spec.model import TextModel
from edge_spec.sampling import Sampler
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.modes import MODES, Mode, mode_of
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
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


class _Recorder(Chooser):
    """Asks every drafter in every round, and drafts nothing."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, most=_MOST)
        self._last_drafts: list[tuple[Tree, float]] = []
        self.recordings: list[Recording] = []

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self.recordings = [Recording(drafter.name, sampler.settings.temperature) for drafter in self.drafters.values()]

    def draft(self, limit: int) -> Tree:
        self._last_drafts = []
        for drafter in self.drafters.values():
            drafter.read()
            started = perf_counter()
            self._last_drafts.append((drafter.draft(min(limit, _MOST)), perf_counter() - started))
        return EMPTY

    def learn_all(self, drafters: Sequence[Drafter], rounds: Sequence[Round]) -> Sequence[None]:
        tokens = rounds[0].tokens
        drafted, self._last_drafts = self._last_drafts or [(EMPTY, 0.0)] * len(self.drafters), []
        for recording, (draft, seconds) in zip(self.recordings, drafted, strict=True):
            recording.truth += tokens
            # A round that a grammar drafted for has several tokens.
            recording.drafts += [draft, *([EMPTY] * (len(tokens) - 1))]
            recording.draft_s += seconds
        return [None]


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
        assert isinstance(drafter, Chooser)
        recorders.append(_Recorder([*drafter.drafters.values()]))
        return recorders[-1]

    with open_model(replace(auto, build=build, limit=_MOST)) as model:
        for number, prompt in enumerate(prompts):
            reply = model.generate(prompt, max_tokens=max_tokens, seed=seed + number, **generate)
            reply.read()
            on_run()
            yield from recorders[-1].recordings if recorders else ()


@click.command("record_drafts.py", cls=Verb)
@option("Runs", "--out", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="FOLDER")
@option("Runs", "--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@option("Runs", "--limit", type=Count(), default=8, metavar="N", help="How many of the prompts to use.")
@max_tokens_option(128, "Maximum tokens of a reply.")
@option("Replies", "--seed", type=int, default=1, metavar="N", help="Random seed; prompt i uses N + i.")
@model_options
@sampler_options()
def main(**values: Any) -> None:
    """Write what the drafters of auto would draft at every place of MODEL's own text."""
    arguments = load_arguments(values)
    possible = possible_modes(**arguments)
    auto = mode_of("auto", given=frozenset(need for mode in possible for need in MODES[mode].needs))
    folder: Path = values["out"]
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        files: dict[str, TextIO] = {}
        for recording in record(
            lambda mode: load(**arguments, speculation=mode),
            auto,
            [prompt.text for prompt in prompts_or_own(values["prompts"])[: values["limit"]]],
            **reply_arguments(values),
        ):
            if recording.drafter not in files:
                path = folder / f"{recording.drafter}-t{recording.temperature:.1f}.jsonl"
                files[recording.drafter] = opened.enter_context(path.open("w", encoding="utf-8"))
            print(json.dumps(recording.as_json()), file=files[recording.drafter])


if __name__ == "__main__":
    main()
