"""Whether two versions of edge-spec do the same: replies, conversations, profiles, plans and the command.

    python benchmarks/compare_checkouts.py OLD_PYTHON NEW_PYTHON [--quick] [--prompts FILE] [--baseline FILE]

Each PYTHON belongs to an environment that one of the versions is installed in, with the same libraries.
``checkout_worker.py`` runs in both, outside of their checkouts and with caches of its own, and uses only what stays
from version to version: the command and its options, ``edge_spec.load`` and what it returns, saved conversations. What
was given another name on purpose stands in ``RENAMED``; what is asked, in ``checkout_tasks.py``.

- replies: token ids, text, why it ended, counts of drafts; both engines and mixtures of them, all modes, samplers
- structured: a grammar and JSON schemas
- tables: models whose distributions are tables
- chat: long conversations that outgrow their context, with retries, edits and the like
- saved: conversations saved by the old version continue in the new one with the same words, and without a notice
- profiles: everything that rounds, over a grid of settings
- scarcity: what is dropped while memory is scarce
- plans: from plenty of memory down to the least
- commands: exit codes and output

Differences that are intended stand in ``checkout_expected.toml``, each with its reason. Every other one is printed, and
any makes the exit code 1; ``--all`` prints the expected ones as well. One that no longer occurs is reported as stale.
Nothing is timed, and other work on the machine does not matter as long as it leaves memory free. With ``--baseline
FILE`` what the old version does is kept in FILE, and its conversations in a folder beside it; where FILE is there
already, OLD_PYTHON is not started. ``--sections A,B`` compares these alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checkout_commands import RENAMED
from checkout_expected import Difference, Expectations
from checkout_tasks import PROMPTS, task_of

_WORKER = Path(__file__).with_name("checkout_worker.py")
_SHOWN = 160
_SAVING = ("saved", "commands")
"""Sections that save conversations, or read those of the old version."""

_PLANNING = ("plans",)
"""In a process of their own: what other sections have left in memory would be planned with."""

_PROCESSES = 2
"""Most of them use one thread."""

Json = dict[str, Any]


class Side:
    """What the version in an environment does: groups of sections, each in a process of its own.

    Args:
        python: of the environment.
        own: a folder for the conversations that it saves.
        others: a folder with those of the old version.
    """

    def __init__(self, python: str, task: Json, pool: ThreadPoolExecutor, *, own: Path, others: Path) -> None:
        own.mkdir(parents=True, exist_ok=True)
        self._python = python
        self._pool = pool
        self._task = {"parts": task["parts"], "own": str(own), "others": str(others)}
        self._running: list[Future[Json]] = []

    def start(self, sections: Sequence[str]) -> Future[Json]:
        self._running.append(self._pool.submit(self._run, sections))
        return self._running[-1]

    def result(self) -> Json:
        """All sections, once all that was started has come to its end."""
        found = [each.result() for each in self._running]
        sections = {name: section for each in found for name, section in each["sections"].items()}
        return {**found[0], "sections": {name: sections[name] for name in self._task["parts"] if name in sections}}

    def _run(self, sections: Sequence[str]) -> Json:
        with tempfile.TemporaryDirectory(prefix="edge-spec-compare-") as name:
            folder = Path(name)
            home = {variable: str(folder / "home") for variable in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
            environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
            # Threads that spin while they wait would take the processor from other work, and wait for it in turn.
            environment |= {**home, "NO_COLOR": "1", "COLUMNS": "100", "OMP_WAIT_POLICY": "PASSIVE"}
            (folder / "task.json").write_text(json.dumps({**self._task, "sections": sections}), "utf-8")
            command = [self._python, str(_WORKER), "task.json", "result.json"]
            if code := subprocess.run(command, cwd=folder, env=environment).returncode:
                raise SystemExit(f"{self._python} failed with exit code {code} in {', '.join(sections)}")
            found: Json = json.loads((folder / "result.json").read_text("utf-8"))
            return found


def differences(place: str, old: Any, new: Any, tolerance: int) -> Iterator[Difference]:
    """Everything that differs; of a list its first difference, since the rest follows from it."""
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = ({RENAMED.get(key, key): each for key, each in value.items()} for value in (old, new))
        # The command may have more options than before.
        for key in old if place.endswith(" > options") else dict.fromkeys((*old, *new)):
            if key not in old or key not in new:
                yield f"{place} > {key}", f"only in the {'old' if key in old else 'new'} version"
            else:
                yield from differences(f"{place} > {key}", old[key], new[key], tolerance)
    elif isinstance(old, list) and isinstance(new, list):
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            if found := list(differences(f"{place} > {number}", one, other, tolerance)):
                yield from found
                return
        if len(old) != len(new):
            yield place, f"{len(old)} and {len(new)} entries, the shorter one equal as far as it goes"
    elif isinstance(old, int) and isinstance(new, int) and " > bytes > " in place:
        if abs(old - new) > tolerance:
            yield place, f"{old:,} and {new:,}"
    elif (type(old), old) != (type(new), new):
        first, second = str(old), str(new)
        common = next((n for n, (one, two) in enumerate(zip(first, second, strict=False)) if one != two), 0)
        start = max(0, common - _SHOWN // 2)
        yield place, f"{first[start : start + _SHOWN]!r} and {second[start : start + _SHOWN]!r}"


def counted(value: Any) -> tuple[int, int]:
    """Tokens written in a result, and errors in it that are results themselves."""
    if isinstance(value, dict):
        inner = [counted(each) for each in value.values()]
        own = (len(value["token_ids"]) if "token_ids" in value else 0, int(isinstance(value.get("error"), str)))
        return own[0] + sum(tokens for tokens, _ in inner), own[1] + sum(errors for _, errors in inner)
    if isinstance(value, list):
        inner = [counted(each) for each in value if isinstance(each, dict | list)]
        return sum(tokens for tokens, _ in inner), sum(errors for _, errors in inner)
    return 0, 0


def compare(old: Json, new: Json, tolerance: int, *, expected: Expectations, show_all: bool = False) -> int:
    """Print every difference that was not expected, and a line for each section; how many there are."""
    for name in dict.fromkeys((*old["libraries"], *new["libraries"])):
        one, other = old["libraries"].get(name), new["libraries"].get(name)
        if one != other:
            print(f"note: {name} is {one} in the old environment and {other} in the new one")
    print(f"old: {old['place']}\nnew: {new['place']}")
    if old["place"] == new["place"]:
        print("note: both are the same installation")
    total, lines = 0, []
    for name, other in new["sections"].items():
        one = old["sections"][name]
        found = list(differences(name, one["cases"], other["cases"], tolerance))
        unexpected = expected.unexpected(found)
        for side, cases in (("old", one["cases"]), ("new", other["cases"])):
            if "crash" in cases:
                unexpected.append((name, f"stopped in the {side} version\n{cases['crash']}"))
        print("".join(f"{place}: {said}\n" for place, said in (found if show_all else unexpected)), end="")
        total += len(unexpected)
        tokens, refused = counted(one["cases"])
        lines.append(
            f"{name:10} {len(one['cases']):5} results, {refused:3} of them refusals, {tokens:7,} tokens; "
            f"{len(found)} differences, {len(unexpected)} unexpected; "
            f"{one['seconds']:.0f} s and {other['seconds']:.0f} s"
        )
    print("\n".join(lines))
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old_python", help="python of the old version's environment")
    parser.add_argument("new_python", nargs="?", help="python of the new one's; left out, only the baseline is written")
    parser.add_argument("--quick", action="store_true", help="a part of everything, in less than a minute")
    parser.add_argument("--prompts", metavar="FILE", help="a prompt per line, instead of the built-in ones")
    parser.add_argument("--baseline", metavar="FILE", type=Path, help="results of the old version: read, else written")
    parser.add_argument("--sections", metavar="A,B", help="compare only these with the baseline, see above for names")
    parser.add_argument("--all", action="store_true", help="print the differences that are expected as well")
    parser.add_argument(
        "--tolerance",
        metavar="BYTES",
        type=int,
        default=1 << 20,
        help="by which sizes of plans may differ that follow the process's own [default: 1 MiB]",
    )
    values = parser.parse_args(arguments)
    prompts: Sequence[str] = PROMPTS
    if values.prompts is not None:
        lines = Path(values.prompts).read_text("utf-8").splitlines()
        prompts = [line for line in lines if line.strip()]
    # As a file would give it back.
    task = json.loads(json.dumps(task_of(prompts, quick=values.quick)))
    baseline: Path | None = values.baseline
    known: Mapping[str, Any] | None = None
    if baseline is not None and baseline.exists():
        known = json.loads(baseline.read_text("utf-8"))
        if known is not None and known["task"] != task:
            raise SystemExit(f"{baseline} is of another task: other options, or another version of this script")
    with tempfile.TemporaryDirectory(prefix="edge-spec-compare-") as name, ThreadPoolExecutor(_PROCESSES) as pool:
        saved = baseline.absolute().with_name(f"{baseline.stem}-saved") if baseline is not None else Path(name, "old")
        chosen = values.sections.split(",") if values.sections is not None and known is not None else [*task["parts"]]
        others = [section for section in chosen if section not in (*_SAVING, *_PLANNING)]
        old = Side(values.old_python, task, pool, own=saved, others=saved) if known is None else None
        new = Side(values.new_python, task, pool, own=Path(name, "new"), others=saved) if values.new_python else None
        last = [section for section in _SAVING if section in chosen]
        saving = old.start(last) if old is not None else None
        for sections in (others, [section for section in _PLANNING if section in chosen]):
            for side in filter(None, (old, new)):
                side.start(sections)
        if saving is not None:
            saving.result()
        if new is not None:
            new.start(last)
        if old is not None:
            known = {"task": task, "result": old.result()}
            if baseline is not None:
                baseline.write_text(json.dumps(known), "utf-8")
        if new is None or known is None:
            return 0
        found = new.result()
    expected = Expectations()
    n_unexpected = compare(known["result"], found, values.tolerance, expected=expected, show_all=values.all)
    for reason, n_found in expected.by_reason().items():
        print(f"expected, {n_found:3} differences: {reason}")
    for place in [] if values.quick else expected.stale(chosen):
        print(f"stale, expected to differ and does not: {place}")
    print("nothing else differs" if not n_unexpected else f"{n_unexpected} unexpected differences")
    return int(n_unexpected > 0)


if __name__ == "__main__":
    sys.exit(main())
