"""What one load and one decoding round enter: files and functions of the package, counted as Python calls them.

``structure.py`` asks for these numbers. This file then runs itself with the interpreter of the checkout:

    PYTHON -P benchmarks/structure_calls.py load ENGINE
    PYTHON -P benchmarks/structure_calls.py round ENGINE --step MODULE.CLASS.step

Of the package it knows only ``load`` and ``generate``, so that it runs with any layout of the code.

A call is the start of a Python function, a comprehension or a generator; resuming a generator is none. Python 3.12
and later run most comprehensions in place, so numbers compare under one version only. What runs because a module is
imported does not count, nor do functions in C, nor other threads. Functions that ``dataclass`` writes are calls of the
module that asked for them, and no file.
"""

from __future__ import annotations

import argparse
import dis
import gc
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = "edge_spec"

PLANNING_FUNCTIONS = ("make_plan", "candidates")
"""What plans a load: calls of these are counted."""

Row = int | str | None

PROMPT = "Once upon a time there was a small engine that"
TOKENS = 160
WARM_UP_ROUNDS = 8
REPLIES = 5

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RESUME = dis.opmap["RESUME"]


@dataclass
class Piece:
    """What was counted between two calls of the function to cut at: of the package, and in all."""

    files: set[str] = field(default_factory=set)
    own: int = 0
    all: int = 0


class Calls(Piece):
    """A profile function that counts what one thread calls."""

    def __init__(self, cut_at: str | None = None) -> None:
        """With ``cut_at``, the full name of a function, counting starts over with every call of it."""
        super().__init__()
        self.planners: Counter[str] = Counter()
        self.pieces: list[Piece] = []
        self._cut_at = cut_at
        self._resumes: dict[tuple[CodeType, int], bool] = {}
        # The outermost import that runs.
        self._importing: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame is self._importing:
            self._importing = None
        code = frame.f_code
        if event != "call" or self._importing is not None or self._goes_on(code, frame.f_lasti):
            return
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            self._importing = frame
            return
        module = str(frame.f_globals.get("__name__", ""))
        own = module == PACKAGE or module.startswith(f"{PACKAGE}.")
        if own and f"{module}.{code.co_qualname}" == self._cut_at:
            self.pieces.append(Piece(self.files, self.own, self.all))
            self.files, self.own, self.all = set(), 0, 0
        self.all += 1
        if own:
            self.own += 1
            if not code.co_filename.startswith("<"):
                self.files.add(code.co_filename)
            self._note_planner(frame)

    def _goes_on(self, code: CodeType, at: int) -> bool:
        """Whether this is a generator that has begun before: it comes out of a yield or an await."""
        if not code.co_flags & _RESUMABLE:
            return False
        if (code, at) not in self._resumes:
            instruction, where = code.co_code[at : at + 2]
            self._resumes[code, at] = instruction == _RESUME and where & 3 != 0
        return self._resumes[code, at]

    def _note_planner(self, frame: FrameType) -> None:
        if frame.f_code.co_name in PLANNING_FUNCTIONS:
            self.planners[frame.f_code.co_name] += 1


@contextmanager
def profiled(calls: Calls) -> Iterator[None]:
    """Count what this thread calls. When garbage is found is chance, and finalizers are calls: it is not looked for."""
    gc.collect()
    gc.disable()
    sys.setprofile(calls)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


def calls_of_load(engine: str) -> dict[str, Any]:
    """One ``load`` of the demo family, up to its return."""
    import edge_spec

    load, calls = edge_spec.load, Calls()
    with profiled(calls):
        model = load("demo", engine=engine)
    with model:
        engine = model.profile.engine
    return {
        "n files": len(calls.files),
        "calls": calls.own,
        "all calls": calls.all,
        "files": sorted(calls.files),
        "planners": dict(calls.planners),
        "engine": engine,
    }


def calls_of_round(engine: str, step: str) -> dict[str, Any]:
    """The median round of a reply in mode ``sequence``: from one call of ``step`` to the next.

    The most likely token always wins, so that every reply has the same rounds. What is done by the clock in some of
    them, such as looking at memory, is left out: of each round the reply counts that took fewest calls for it.
    """
    import edge_spec

    replies = []
    with edge_spec.load("demo", engine=engine, speculation="sequence") as model:
        for _ in range(REPLIES):
            reply = model.generate(PROMPT, seed=1, temperature=0.0, ignore_eos=True, max_tokens=TOKENS)
            calls = Calls(cut_at=step)
            with profiled(calls):
                reply.read()
            # What comes before the first step is the prompt; what follows the last one is not looked at.
            replies.append(calls.pieces[1 + WARM_UP_ROUNDS :])
        engine = model.profile.engine
    if not all(replies) or len({len(pieces) for pieces in replies}) != 1:
        raise SystemExit(f"no rounds to compare: {step} was called {[len(pieces) for pieces in replies]} times")
    rounds = [min(same, key=lambda piece: piece.all) for same in zip(*replies, strict=True)]
    # The low median is one of the rounds, and a whole number.
    return {
        "n files": statistics.median_low(len(piece.files) for piece in rounds),
        "calls": statistics.median_low(piece.own for piece in rounds),
        "all calls": statistics.median_low(piece.all for piece in rounds),
        "files": sorted(set().union(*(piece.files for piece in rounds))),
        "rounds": len(rounds),
        "engine": engine,
    }


def call_rows(root: Path, python: str, step: str, defined: Collection[str], details: list[str]) -> dict[str, Row]:
    """Rows of the table for a checkout; None for what it has not, or where it does not run.

    Args:
        step: full name of the method that is one round, empty for none.
        defined: names of all classes and functions of the checkout.
        details: grows by what is behind the numbers, or why there are none.
    """
    rows: dict[str, Row] = {}
    # What is found out once for each device is kept here, so that every checkout finds the same: nothing.
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("llama", "auto"):
            _run(python, root, folder, "load", engine)
            load = _run(python, root, folder, "load", engine)
            turn = _run(python, root, folder, "round", engine, "--step", step) if step else {}
            for what, found in ((f"load, engine {engine}", load), (f"round, engine {engine}", turn)):
                rows[f"{what}: runs on"] = found.get("engine")
                rows[f"{what}: files entered"] = found.get("n files")
                rows[f"{what}: calls of the package"] = found.get("calls")
                rows[f"{what}: calls in Python"] = found.get("all calls")
                details.append(f"{what}: " + found.get("error", ", ".join(found.get("files", ()))))
            for name in PLANNING_FUNCTIONS:
                known = "planners" in load and name in defined
                rows[f"load, engine {engine}: calls of {name}"] = load["planners"].get(name, 0) if known else None
    return rows


def _run(python: str, root: Path, folder: str, *arguments: str) -> dict[str, Any]:
    """What this file prints with another interpreter, or an ``error``."""
    environment = {**os.environ, "XDG_CACHE_HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    # It runs elsewhere, where nothing of this folder can be taken for the package.
    command = [str(Path(shutil.which(python) or python).absolute()), "-P", __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if done.returncode != 0:
        return {"error": f"exit status {done.returncode}: {done.stderr.strip()[-400:]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    home = Path(found["home"]).resolve()
    if root not in home.parents:
        return {"error": "this interpreter has another copy of the package installed"}
    found["files"] = [Path(file).resolve().relative_to(root).as_posix() for file in found["files"]]
    return found


def main() -> None:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("load", "round"))
    parser.add_argument("engine")
    parser.add_argument("--step", default="", help="the full name of the method that is one round")
    options = parser.parse_args()
    is_load = options.what == "load"
    found = calls_of_load(options.engine) if is_load else calls_of_round(options.engine, options.step)
    found["home"] = sys.modules[PACKAGE].__file__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
