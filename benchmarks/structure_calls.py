"""What one load and one decoding round enter: files and functions of the package, counted as Python calls them.

    python benchmarks/structure_calls.py load ENGINE
    python benchmarks/structure_calls.py round ENGINE --step MODULE.CLASS.step

``structure.py`` runs it with the interpreter of each checkout; it prints JSON. It knows nothing of the package but
``load`` and ``generate``, so that it runs with any layout of the code.

A call is the start of a Python function, a comprehension or a generator; a generator that goes on is none. Python 3.12
and later run most comprehensions in place, so numbers are compared under one version. What runs because a module is
imported does not count, nor do functions in C, nor other threads. Functions that ``dataclass`` writes are calls of the
module that asked for them, and no file.
"""

from __future__ import annotations

import argparse
import dis
import gc
import inspect
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

PACKAGE = "edge_spec"

WATCHED_CLASSES = ("Planner",)
"""Classes of the package whose new instances are counted, by name."""

WATCHED_FUNCTIONS = ("best", "candidates")
"""Functions and methods of the package whose calls are counted, by name."""

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
        """With ``cut_at``, the full name of a function, counting begins anew with every call of it."""
        super().__init__()
        self.watched: Counter[str] = Counter()
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
            self._watch(frame)

    def _goes_on(self, code: CodeType, at: int) -> bool:
        """Whether this is a generator that has begun before: it comes out of a yield or an await."""
        if not code.co_flags & _RESUMABLE:
            return False
        if (code, at) not in self._resumes:
            instruction, where = code.co_code[at : at + 2]
            self._resumes[code, at] = instruction == _RESUME and where & 3 != 0
        return self._resumes[code, at]

    def _watch(self, frame: FrameType) -> None:
        name = frame.f_code.co_name
        if name in WATCHED_FUNCTIONS:
            self.watched[name] += 1
        elif name == "__init__" and frame.f_code.co_argcount:
            first = frame.f_code.co_varnames[0]
            made, caller = frame.f_locals.get(first), frame.f_back
            # The constructor of a base class that the class's own one calls makes no second instance.
            again = caller is not None and caller.f_code.co_name == name and caller.f_locals.get(first) is made
            if type(made).__name__ in WATCHED_CLASSES and not again:
                self.watched[type(made).__name__] += 1


@contextmanager
def profiled(calls: Calls) -> Iterator[None]:
    """Count what this thread does. Garbage is collected before: when it is found is chance, and finalizers are calls."""
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
    found = {"files": sorted(calls.files), "calls": calls.own, "all calls": calls.all}
    return {**found, "watched": dict(calls.watched), "engine": engine}


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


def main() -> None:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("load", "round"))
    parser.add_argument("engine")
    parser.add_argument("--step", default="", help="the full name of the method that is one round")
    options = parser.parse_args()
    if options.what == "load":
        found = calls_of_load(options.engine)
    else:
        found = calls_of_round(options.engine, options.step)
    found["home"] = sys.modules[PACKAGE].__file__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
