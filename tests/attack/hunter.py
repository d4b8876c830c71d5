"""Hunt for a token that depends on anything but the model, its settings, the prompt and the seed.

Stories are drawn by number (``stories.py``), so a hunt is resumed with ``--first``. Each is played in a fork of this
process. What differs from plain decoding is made as small as still differs, and printed as the command that shows it.

    python tests/attack/hunter.py --seconds 3600
    python tests/attack/hunter.py --seconds 3600 --company
    python tests/attack/hunter.py --seconds 3600 --interrupted
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from forked import forked
from hunted_models import HuntedModels
from playing import Played, play
from stories import company, interrupted, story

__all__ = ["hunt", "minimized"]

_SECONDS = 600.0

Story = Mapping[str, Any]


def _played(told: Story, folder: Path) -> Played:
    """Play a story in a fork."""

    def work() -> None:
        played = play(told, HuntedModels(folder)[told["model"]], folder)
        print(json.dumps([played.counts, played.finds]))

    outcome = forked(work, seconds=_SECONDS)
    fault = outcome.fault(most_bytes=1 << 40, most_lines=1 << 20)
    if fault or outcome.code:
        return Played(finds=[fault or f"exit code {outcome.code}: {outcome.err.strip()[-200:]}"])
    counts, finds = json.loads(outcome.out.strip().splitlines()[-1])
    return Played(Counter(counts), finds)


def _smaller(told: Story) -> Iterator[Story]:
    """Yield stories with less in them, those with much less first."""
    steps = told["steps"]
    for place in range(len(steps)):
        yield {**told, "steps": steps[:place] + steps[place + 1 :]}
    for place, step in enumerate(steps):
        for index in range(len(step) if len(step) > 1 else 0):
            yield {**told, "steps": [*steps[:place], step[:index] + step[index + 1 :], *steps[place + 1 :]]}
    for changed in ({"limits": None}, {"tight": False}, {"mode": "ngram"}, {"mode": "seer"}, {"mode": "off"}):
        if any(told[name] != value for name, value in changed.items()):
            yield {**told, **changed}
    for name in ("system", "texts"):
        if told.get(name):
            yield {**told, name: None}
    if "draft_engine" in told:
        yield {name: value for name, value in told.items() if name != "draft_engine"}
    for name, value in told["load"].items():
        # Neither engine takes every type of keys with every type of values.
        gone = ("kv_k", "kv_v") if name in ("kv_k", "kv_v") else (name,)
        rest = {other: each for other, each in told["load"].items() if other not in gone}
        if name == "n_threads" and value != 1:
            yield {**told, "threads": 1, "load": {**rest, name: 1}}
        elif name not in ("n_ctx", "n_threads"):
            yield {**told, "load": rest}
    for place, step in enumerate(steps):
        for index, ask in enumerate(step):
            for less in _less(ask):
                yield {
                    **told,
                    "steps": [*steps[:place], [*step[:index], less, *step[index + 1 :]], *steps[place + 1 :]],
                }


def _less(ask: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("leave", "drops", "stays", "raises", "threads", "events"):
        if ask.get(name):
            yield {other: value for other, value in ask.items() if other != name}
    if ask.get("n", 0) > 1:
        yield {**ask, "n": ask["n"] // 2}
    if len(ask.get("prompts", ())) > 1:
        yield {**ask, "prompts": ask["prompts"][1:]}
        yield {**ask, "prompts": ask["prompts"][:-1]}
    for name in ("prompt", "text"):
        if len(ask.get(name, "")) > 8:
            yield {**ask, name: ask[name][: len(ask[name]) // 2]}
    options = ask.get("options", {})
    for name, value in options.items():
        if name == "max_tokens" and value > 1:
            yield {**ask, "options": {**options, name: value // 2}}
            yield {**ask, "options": {**options, name: value - 1}}
        elif name not in ("seed", "max_tokens"):
            yield {**ask, "options": {other: each for other, each in options.items() if other != name}}


def minimized(told: Story, folder: Path, seconds: float) -> Story:
    """Return a story as short as still brings a difference, as far as there is time to find one."""
    until = time.monotonic() + seconds
    found = True
    while found and time.monotonic() < until:
        found = False
        for each in _smaller(told):
            if time.monotonic() > until:
                break
            if _played(each, folder).finds:
                told, found = copy.deepcopy(dict(each)), True
                break
    return told


def hunt(
    numbers: range,
    seconds: float,
    tell: Callable[[str], object],
    folder: Path,
    *,
    minimizing_s: float = 90.0,
    draw: Callable[[int], Story] = story,
) -> tuple[Counter[str], int]:
    """Play stories until the time is over.

    Args:
        tell: called with each difference, and with the command that shows it.
        folder: for models, caches and conversations.
        draw: returns the story of a number.

    Returns:
        Comparisons by kind, and the number of the first story that was left.
    """
    counts: Counter[str] = Counter()
    # Threads of OpenMP wait actively: two of them on a busy core take a second for a token.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    until = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > until:
            return counts, number
        told = draw(number)
        played = _played(told, folder)
        counts.update(played.counts)
        if played.finds:
            counts["DIFFERENCES"] += 1
            small = minimized(told, folder, minimizing_s)
            tell(f"story {number}: {'; '.join(_played(small, folder).finds[:3] or played.finds[:3])}")
            tell(f"    python tests/attack/hunter.py --story '{json.dumps(small)}'")
    return counts, numbers.stop


def main() -> int:
    """Hunt as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first story")
    parser.add_argument("--stories", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--company", action="store_true", help="17 and more texts side by side in every story")
    parser.add_argument("--interrupted", action="store_true", help="conversations on llama.cpp that are interrupted")
    parser.add_argument("--story", help="play this one, as a difference was printed")
    parser.add_argument("--minimize", type=float, default=90.0, help="seconds to make a difference smaller")
    parser.add_argument("--folder", type=Path, help="keep models and caches here for the next hunt")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(exist_ok=True)
        if given.story:
            played = _played(json.loads(given.story), folder)
            print("\n".join(played.finds) or f"no difference in {played.counts['all']} texts")
            return int(bool(played.finds))
        numbers = range(given.first, given.first + given.stories)
        counts, left = hunt(
            numbers,
            given.seconds,
            lambda line: print(line, flush=True),
            folder,
            minimizing_s=given.minimize,
            draw=interrupted if given.interrupted else company if given.company else story,
        )
    for kind, n in sorted(counts.items()):
        print(f"{n:8} {kind}")
    print(f"{counts['all']} comparisons; continue with --first {left}")
    return int(bool(counts["DIFFERENCES"]))


if __name__ == "__main__":
    sys.exit(main())
