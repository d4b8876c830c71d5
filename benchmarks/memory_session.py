"""One plan in a process of its own: plan, impose the limit, load, fill the context, write.

Started by ``memory_accuracy.py`` as ``python memory_session.py ARGUMENTS GROUP``; prints its findings as JSON. Memory
is watched as it is for users, so the findings include every step of degradation.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hard_limit import impose, mappings_bytes

import edge_spec.loading as loading
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.request import request_of
from edge_spec.generation.reply import Reply
from edge_spec.memory import probe, usage
from edge_spec.memory.budget import Budget
from edge_spec.model import TextModel

__all__ = ["MIB", "Reader", "another_plan", "forget_peak", "held_bytes", "peak_resident_bytes"]

MIB = 1 << 20
_NOT_FOR_LOAD = ("fill", "new", "limited", "mappings_bytes")


class Reader:
    """Reads replies of a model.

    Attributes:
        degradations: what the model gave up meanwhile for lack of memory, even temporarily, and the notices that it
            gave, such as that words may differ from now on.
    """

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self.degradations: list[str] = []

    def read(self, reply: Reply) -> Reply:
        """Read a reply to its end."""
        self._look()
        for _ in reply:
            self._look()
        self._look()
        self._add(reply.notices)
        return reply

    def _look(self) -> None:
        self._add(self._model.degradations)

    def _add(self, sentences: Iterable[str]) -> None:
        self.degradations += [sentence for sentence in sentences if sentence not in self.degradations]


def session(asked: dict[str, Any], group: str) -> dict[str, Any]:
    """Return what was planned, and what it took, by phase."""
    phases: dict[str, dict[str, int]] = {}

    def phase(name: str) -> None:
        now = usage()
        peak = peak_resident_bytes() or now.resident_bytes
        shared = now.resident_bytes - now.unique_bytes
        phases[name] = {**vars(now), "peak_resident_bytes": peak, "peak_unique_bytes": peak - shared}
        forget_peak()

    arguments = {name: value for name, value in asked.items() if name not in _NOT_FOR_LOAD}
    first_held = held_bytes(arguments)
    phase("import")
    plan = loading.plan(memory=1 << 40, held_bytes=first_held, **arguments)
    phase("plan")
    limit = plan.chosen.needed_bytes
    if asked["limited"]:
        impose(group, limit, asked.get("mappings_bytes", 0))
    # Measured again, the process would include what planning took.
    setattr(loading, "budget_of", lambda memory: Budget(budget_bytes=limit, held_bytes=first_held))  # noqa: B010
    with loading.load(memory=limit, **arguments) as model:
        phase("load")
        reader = Reader(model)
        n_written, n_read = _write(model, reader, asked)
        phase("write")
        mapped = mappings_bytes()
        model.ledger.check_integrity()
        lines = model.ledger.report()["lines"]
        notes = list(model.notes)
    degradations = [*reader.degradations, *another_plan(plan.chosen.described, limit, first_held, arguments)]
    return {
        "predicted_bytes": plan.chosen.peak_bytes,
        "limit_bytes": limit,
        "phases": phases,
        "lines": lines,
        "tokens": n_written,
        "prompt_tokens": n_read,
        "notes": notes,
        "degradations": degradations,
        "limited": asked["limited"],
        "mappings_bytes": mapped,
    }


def held_bytes(arguments: dict[str, Any]) -> int:
    """Return what this process holds when ``load`` measures it: libraries are loaded and headers are read."""
    asked = {name: value for name, value in arguments.items() if name != "cache_dir"}
    for each in request_of(LoadOptions.of(asked.pop("model", None), asked)).in_question:
        each.load_library()
    probe()
    return usage().resident_bytes


def another_plan(wanted: str, limit: int, held: int, arguments: dict[str, Any]) -> list[str]:
    """A sentence if ``load`` planned something else under this budget; empty if it planned what was meant."""
    found = loading.plan(memory=limit, held_bytes=held, **arguments).chosen.described
    return [] if found == wanted else [f"loaded with {found} instead of {wanted}"]


def _write(model: TextModel, reader: Reader, asked: dict[str, Any]) -> tuple[int, int]:
    """Write the wanted number of tokens, in several replies if necessary; the first of them ends with a full context.

    Half of the text is read before, as in a conversation: of the places between messages copies of states are kept.

    Returns the numbers of tokens written and read.
    """
    draw = random.Random(1)
    most = min(asked.get("fill", model.n_ctx), model.n_ctx)
    n_prompt = max(4, most - asked["new"] - 1, most // 2 - 1)
    text = [draw.randrange(300, model.n_vocab - 2) for _ in range(n_prompt)]
    n_read, n_left = 0, asked["new"]
    reader.read(model.generate(tokens=text[: n_prompt // 2], max_tokens=1, seed=1))
    while n_left > 0:
        n_read += len(text)
        done = reader.read(
            model.generate(tokens=text, max_tokens=min(n_left, model.n_ctx - len(text) - 1), seed=1, ignore_eos=True)
        )
        if not done.token_ids:
            break
        n_left -= len(done.token_ids)
        # The text continues with its younger half, like a conversation that has outgrown its context.
        text = [*text, *done.token_ids][-(model.n_ctx // 2) :]
    return asked["new"] - n_left, n_read


def peak_resident_bytes() -> int | None:
    """The highest resident size since ``forget_peak``, if the system counts it."""
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return None
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Reset the highest resident size, if the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


if __name__ == "__main__":
    print(json.dumps(session(json.loads(sys.argv[1]), sys.argv[2])))
