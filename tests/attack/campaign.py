"""Attack with as many random inputs as there is time for: models, chats, templates, schemas, requests and others.

Each case has a number and is the same for it, so a run is resumed with ``--first``, and what is found is printed as the
command that shows it again. Cases run in forks of this process, several at a time where they are small, which are timed
and measured.

    python tests/attack/campaign.py gguf --seconds 3600
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from forked import forked
from kinds import BUDGET, KINDS

__all__ = ["attack"]

_MORE = 64 << 20
_SECONDS = 600.0
_COMPUTING_S = 120
_MOST_SAID = 8000


def _tried(kind: str, numbers: range, home: Path) -> tuple[Counter[str], list[str]]:
    """Return how some cases ended that are tried in one fork, and what went wrong there, then what they said."""

    def work() -> None:
        os.environ.update(dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home)))
        ended: Counter[str] = Counter()
        for number in numbers:
            try:
                KINDS[kind].told(number, home)
                ended["done"] += KINDS[kind].inputs
            except SystemExit as left:
                ended["refused" if left.code else "done"] += KINDS[kind].inputs
                # What a command has told is looked at below.
                if len(numbers) == 1:
                    raise
            finally:
                print(f"\n{json.dumps(ended)}", flush=True)

    outcome = forked(work, seconds=_SECONDS, computing_s=_COMPUTING_S)
    fault = outcome.fault(most_bytes=BUDGET + _MORE, most_lines=6 * len(numbers))
    if fault:
        return Counter(), [fault, *f"{outcome.out}{outcome.err}"[-_MOST_SAID:].splitlines()]
    return Counter(json.loads(outcome.out.strip().splitlines()[-1])), []


def _finds(kind: str, numbers: range, fault: list[str], home: Path) -> Iterator[tuple[range, list[str]]]:
    """Yield the cases that go wrong alone, with what goes wrong; all of them, if none does.

    Args:
        fault: what went wrong with all of them.
    """
    found = False
    for number in numbers if len(numbers) > 1 else ():
        alone = range(number, number + 1)
        _, told = _tried(kind, alone, home)
        if told:
            found = True
            yield alone, told
    if not found:
        yield numbers, fault


def attack(kind: str, numbers: range, seconds: float, told: Callable[[str], object]) -> tuple[Counter[str], int]:
    """Run cases until the time is over.

    Args:
        told: called with each find, and with each line that was said in it.

    Returns:
        How many inputs there were, by how they ended, and the number of the first case that was left.
    """
    ended: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        for start in range(numbers.start, numbers.stop, KINDS[kind].at_once):
            if time.monotonic() > until:
                return ended, start
            together = range(start, min(start + KINDS[kind].at_once, numbers.stop))
            done, fault = _tried(kind, together, Path(place))
            ended.update(done)
            if fault:
                for cases, each in _finds(kind, together, fault, Path(place)):
                    ended["fault"] += 1
                    again = f"{kind} --first {cases.start} --cases {len(cases)}"
                    told(f"{each[0]}: python tests/attack/campaign.py {again}")
                    for line in each[1:]:
                        told(f"    {line}")
    return ended, numbers.stop


def main() -> int:
    """Attack as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases)
    ended, left = attack(given.kind, numbers, given.seconds, lambda line: print(line, flush=True))
    print(f"{ended.total()} inputs: {dict(ended)}; continue with --first {left}")
    return int(bool(ended["fault"]))


if __name__ == "__main__":
    sys.exit(main())
