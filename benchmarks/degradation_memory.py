"""Memory that each step of memory degradation frees, as the system counts it.

    python benchmarks/degradation_memory.py --models FOLDER

The target is a model of 0.1 billion parameters with random weights; an intermediate model and a drafter are smaller. A
watch reports scarce memory again and again. After every step the model reads half a context and writes a reply, and the
unique size of the process is measured. Prints a line per step and engine, and exits with 1 unless memory fell at every
step that drops a model, makes a cache smaller or halves the context.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from memory_plans import prepared
from memory_session import MIB

import edge_spec
from edge_spec.memory import usage
from edge_spec.memory.pressure import PressureReading, PressureWatch

_NEW = 64


class ScarceMemory:
    """Memory that is scarce until so many steps are taken, and a clock on which every look is late."""

    def __init__(self) -> None:
        self.wanted = 0
        self.model: edge_spec.TextModel | None = None
        self._now_s = 0.0

    def clock(self) -> float:
        """A time long after the previous one."""
        self._now_s += 100.0
        return self._now_s

    def look(self) -> PressureReading:
        taken = len(self.model.degradations) if self.model is not None else 0
        return PressureReading(available_bytes=0 if taken < self.wanted else 150)

    def watch(self) -> PressureWatch:
        """The watch for ``load``."""
        return PressureWatch(self.look, low_bytes=100, interval_s=0.0, clock=self.clock)


def steps(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Load, take every step, and measure after each."""
    scarce = ScarceMemory()
    found: list[dict[str, Any]] = []
    with edge_spec.load(asked.pop("model"), watch=scarce.watch(), **asked) as model:
        scarce.model = model
        draw = random.Random(1)
        while True:
            text = [draw.randrange(300, model.n_vocab - 2) for _ in range(model.n_ctx // 2 - _NEW - 1)]
            reply = model.generate(tokens=text, max_tokens=_NEW, seed=1, ignore_eos=True)
            reply.read()
            gc.collect()
            if reply.finish_reason == "memory" or len(model.degradations) < scarce.wanted:
                return found
            model.ledger.check_integrity()
            found.append(
                {
                    "step": model.degradations[-1] if model.degradations else "nothing reduced",
                    "planned_bytes": model.ledger.held_bytes,
                    "unique_bytes": usage().unique_bytes,
                    "n_ctx": model.n_ctx,
                    "profile": model.profile.name,
                }
            )
            scarce.wanted += 1


def in_its_own_process(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """``steps`` in a process where nothing else is loaded."""
    done = subprocess.run([sys.executable, __file__, "--asked", json.dumps(asked)], capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.decode("utf-8", "replace")[-2000:])
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("benchmark-models"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--asked", help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.asked:
        print(json.dumps(steps(json.loads(values.asked))))
        return 0
    fell = True
    for engine in ("llama", "onnx"):
        wanted = {
            "model": "llama-0.1b",
            "draft": "llama-20m",
            "intermediate": "llama-20m",
            "n_ctx": None,
            "engine": engine,
            "speculation": "hierarchy",
        }
        asked = prepared(wanted, values.models, long=False, n_threads=values.threads)
        found = in_its_own_process({name: value for name, value in asked.items() if name not in ("fill", "new")})
        print(f"{engine}: {'unique':>9} {'fell by':>9} {'planned':>9}   step")
        for before, now in pairwise([None, *found]):
            assert now is not None
            less = before["unique_bytes"] - now["unique_bytes"] if before else 0
            planned = before["planned_bytes"] - now["planned_bytes"] if before else 0
            fell &= before is None or less > 0
            print(
                f"{engine}: {now['unique_bytes'] / MIB:9.1f} {less / MIB:9.1f} {planned / MIB:9.1f}   "
                f"{now['step']} ({now['profile']}, context {now['n_ctx']})",
                flush=True,
            )
    print("memory fell at every step" if fell else "memory did not fall at every step")
    return 0 if fell else 1


if __name__ == "__main__":
    sys.exit(main())
