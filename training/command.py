"""The command: ``python -m edge_spec.training --corpus FOLDER --out FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_spec.errors import EdgeSpecError, SettingsError
from edge_spec.extras import not_installed
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.settings import SETTINGS, setting_of
from edge_spec.training.stages import STAGES, TRAININGS, Recipe

__all__ = ["main"]

_TIME_IS_UP = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a family of models that share a vocabulary.

    Exits with 0 when all stages are done, with 3 when the time limit was reached first, with 1 after an error.
    """
    given = _parser().parse_args(arguments)
    try:
        # What is typed wrong is said before a library is missed.
        setting, steps, stages = setting_of(given.setting), dict(map(_steps, given.steps)), _stages(given.stage)
        recipe = Recipe(
            setting=setting,
            texts=given.corpus,
            evaluation=given.evaluation,
            out=given.out,
            seed=given.seed,
            device=_device(given.device, given.threads),
            clock=Clock(given.time_limit_s),
            say=lambda line: print(line, flush=True),
            steps=steps,
        )
        for stage in stages:
            getattr(recipe, stage)()
    except TimeIsUp as note:
        print(f"training: time limit reached: {note}; run the same command to continue")
        return _TIME_IS_UP
    except ModuleNotFoundError as error:
        print(f"training: error: {not_installed(str(error.name), extra='training')}", file=sys.stderr)
        return 1
    except EdgeSpecError as error:
        print(f"training: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m edge_spec.training", description=main.__doc__)
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="JSONL files to train on (stage prepare)")
    parser.add_argument("--evaluation", type=Path, metavar="FOLDER", help="JSONL files to hold out and evaluate on")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder for all results")
    parser.add_argument("--setting", default="cpu", help=f"{', '.join(SETTINGS)} [default: %(default)s]")
    parser.add_argument("--stage", default=",".join(STAGES), metavar="A,B", help="stages to run [default: %(default)s]")
    parser.add_argument("--time-limit-s", type=float, metavar="S", help="save and stop after so many seconds")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [default: an accelerator if there is one]")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch; the weights depend on it")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="[default: %(default)s]")
    parser.add_argument(
        "--steps", action="append", default=[], metavar="NAME=N", help="repeat a training that a time budget cut to N"
    )
    return parser


def _stages(names: str) -> list[str]:
    stages = names.split(",")
    for stage in stages:
        if stage not in STAGES:
            raise SettingsError(f"there is no stage {stage!r}", hint=f"choose from {', '.join(STAGES)}")
    return stages


def _steps(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if name not in TRAININGS or not number.isdigit() or int(number) < 1:
        hint = f"write NAME=N, such as target=2000, with a name of {', '.join(TRAININGS)}"
        raise SettingsError(f"--steps {text!r} is not a valid number of steps", hint=hint)
    return name, int(number)


def _device(name: str, threads: int | None) -> str:
    from edge_spec.training.precision import device_of

    return device_of(name, threads)
