"""Predicted and measured memory of many plans, each in a process of its own, optionally under a hard limit.

    python benchmarks/memory_accuracy.py --models FOLDER --json sizes.json --plot sizes.svg   # sizes
    python benchmarks/memory_accuracy.py --models FOLDER --json limit.json --limit --long     # the limit holds

Writes models of common shapes with random weights into FOLDER (some 30 GB with transcriptions; remove it afterwards),
then starts a process for every plan, which loads it and writes. With --limit the process gets no more than its budget:
a control group, version 1 or 2, where this user may create one, which counts everything, cached and mapped pages
included, which the system then reclaims early; elsewhere, and with --address-space, a limit on address space, with an
allowance for what a process without a limit maps and does not touch. Sizes are compared without a limit. With --long
every context is filled to its last token and every session writes 2,000 tokens, or 256 with more than half a billion
parameters: hours on a small computer. Plans that the JSON file has already are not run again.

A plan fails if its process dies, runs out of memory in its group, exceeds its budget, or gives something up for lack of
memory, such as its drafter; without a limit also if its prediction is outside the bounds. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hard_limit import make_group, of_group
from memory_plans import grid, named, prepared

MIB = 1 << 20
_SESSION = Path(__file__).with_name("memory_session.py")


def forget_files(asked: dict[str, Any]) -> None:
    """Drop the model files from the page cache: pages are charged to the group that reads them first."""
    if not hasattr(os, "posix_fadvise"):
        return
    from edge_spec.models import resolve_family

    family = resolve_family(asked["model"])
    files = [family.target, family.draft, family.intermediate, asked.get("draft"), asked.get("intermediate")]
    if asked.get("cache_dir"):
        files += Path(asked["cache_dir"]).glob("onnx/*/weights.bin")
    for path in filter(None, files):
        with Path(path).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(asked: dict[str, Any], *, address_space: bool = False) -> dict[str, Any]:
    """Run one plan in a process of its own.

    Args:
        address_space: limit address space even where control groups can be created.
    """
    group = "" if address_space else make_group()
    if asked["limited"] and not group:
        # What is mapped and not touched when the context is full; before that, caches and weights would count.
        free = _run({**asked, "new": 1, "limited": False}, "")
        if "failed" in free:
            return free
        asked = {**asked, "mappings_bytes": free["mappings_bytes"]}
    if asked["limited"]:
        forget_files(asked)
    try:
        found = _run(asked, group)
        return {**found, "group": of_group(group), "allowed_for_mappings_bytes": asked.get("mappings_bytes")}
    finally:
        if group:
            Path(group).rmdir()


def _run(asked: dict[str, Any], group: str) -> dict[str, Any]:
    def enter() -> None:
        if group:
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()), "ascii")

    command = [sys.executable, str(_SESSION), json.dumps(asked), group]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    if not group:
        # Otherwise glibc maps 64 MiB per thread or not, by chance, and no allowance would be exact.
        environment["MALLOC_ARENA_MAX"] = "1"
    done = subprocess.run(command, capture_output=True, preexec_fn=enter, env=environment, check=False)
    if done.returncode != 0:
        return {"failed": done.returncode, "said": done.stderr.decode("utf-8", "replace")[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(name: str, found: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "failed" in found:
        return f"{name}: FAILED {found['failed']} {found['said']}"
    predicted, peak, unique = peaks(found)
    group = found["group"].get("highest_bytes") if "group" in found else None
    return (
        f"{name:<92} {predicted / MIB:8.1f} {peak / MIB:8.1f} {(predicted - peak) / MIB:+6.1f} "
        f"{predicted / peak - 1:+6.1%}{'!' if faults(found) else ' '}"
        f"| unique {unique / MIB:8.1f} {unique_error(found) / MIB:+6.1f} | budget {found['limit_bytes'] / MIB:8.1f}"
        f" in group {-1 if group is None else group / MIB:8.1f}"
        f" | {found['prompt_tokens']} read, {found['tokens']} written"
    )


def unique_error(found: Mapping[str, Any]) -> int:
    """Predicted minus measured unique bytes; what was shared before is predicted to stay shared."""
    before = found["phases"]["plan"]
    predicted, _, unique = peaks(found)
    return int(predicted - (before["resident_bytes"] - before["unique_bytes"]) - unique)


def peaks(found: Mapping[str, Any]) -> tuple[int, int, int]:
    """Predicted, highest resident and highest unique bytes."""
    phases = [found["phases"][name] for name in ("load", "write")]
    return (
        found["predicted_bytes"],
        max(phase["peak_resident_bytes"] for phase in phases),
        max(phase["peak_unique_bytes"] for phase in phases),
    )


def good(found: Mapping[str, Any]) -> bool:
    """Return whether a prediction is within 5 % or 8 MiB, and at most 2 % or 4 MiB too low."""
    predicted, peak, _ = peaks(found)
    error = predicted - peak
    return abs(error) <= max(0.05 * peak, 8 * MIB) and -error <= max(0.02 * peak, 4 * MIB)


def faults(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what went wrong with a plan: kinds of fault, with details."""
    if "failed" in found:
        return {"died": f"exit status {found['failed']}"}
    if "degradations" not in found:
        return {"lack data": "measured by an older version of this script"}
    wrong = {}
    group, (predicted, peak, _) = found["group"], peaks(found)
    events = {name: group[name] for name in ("out_of_memory", "killed") if group.get(name)}
    if events:
        wrong["ran out of memory"] = ", ".join(f"{name} {count}" for name, count in events.items())
    if peak > found["limit_bytes"]:
        wrong["exceeded the budget"] = f"{peak / MIB:.1f} of {found['limit_bytes'] / MIB:.1f} MiB"
    if found["degradations"]:
        wrong["gave something up"] = "; ".join(found["degradations"])
    if not found["limited"] and not good(found):
        wrong["are outside the bounds"] = f"{(predicted - peak) / MIB:+.1f} MiB, {predicted / peak - 1:+.1%}"
    return wrong


def summary(rows: Mapping[str, Mapping[str, Any]]) -> int:
    """Print a summary, and last how many plans failed, by kind of fault; returns how many."""
    measured = [found for found in rows.values() if "failed" not in found]
    print(f"\n{len(measured)} of {len(rows)} plans ran")
    if measured:
        sizes = sorted(peaks(found)[1] for found in measured)
        print(f"resident, highest: {sizes[0] / MIB:,.0f} to {sizes[-1] / MIB:,.0f} MiB")
        if any(found.get("limited") for found in measured):
            met = sum(bool(found.get("group", {}).get("at_limit")) for found in measured)
            print(f"{met} met the limit of their group, where the system drops pages that it can read again")
        else:
            _print_errors(measured)
    wrong = {name: faults(found) for name, found in rows.items() if faults(found)}
    for name, found in wrong.items():
        print(f"{name}: {'; '.join(f'{kind}: {words}' for kind, words in found.items())}")
    kinds = list(dict.fromkeys(kind for found in wrong.values() for kind in found))
    counts = ", ".join(f"{sum(kind in found for found in wrong.values())} {kind}" for kind in kinds)
    print(f"{len(wrong)} of {len(rows)} plans failed{': ' * bool(wrong)}{counts}")
    return len(wrong)


def _print_errors(measured: Sequence[Mapping[str, Any]]) -> None:
    errors = sorted(abs(predicted / peak - 1) for predicted, peak, _ in map(peaks, measured))
    below = min(predicted - peak for predicted, peak, _ in map(peaks, measured))
    print(f"{sum(map(good, measured))} within the bounds of 5 % or 8 MiB, and 2 % or 4 MiB below")
    print(f"median error {errors[len(errors) // 2]:.1%}, largest {errors[-1]:.1%}, lowest {below / MIB:+.1f} MiB")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("benchmark-models"))
    parser.add_argument(
        "--only", action="append", default=[], help="run plans with this text in their name; may be repeated"
    )
    parser.add_argument("--not", action="append", default=[], dest="without", help="leave out plans with this text")
    parser.add_argument("--limit", action="store_true", help="impose the hard limit, which makes sizes smaller")
    parser.add_argument(
        "--address-space", action="store_true", help="limit address space instead of using a control group"
    )
    parser.add_argument("--long", action="store_true", help="fill contexts, and write 2,000 or 256 tokens")
    parser.add_argument("--fill", type=int, metavar="N", help="read at most N tokens, however large the context is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file of results; those in it are kept")
    parser.add_argument("--plot", type=Path, help="SVG of predicted and measured sizes; needs matplotlib")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    values = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    if values.json and values.json.exists():
        rows = json.loads(values.json.read_text("utf-8"))
    for asked in [] if values.only_report else list(grid()):
        name = named(asked)
        if any(text in name for text in values.without) or not any(text in name for text in values.only or [""]):
            continue
        if "degradations" not in rows.get(name, {}):
            ready = prepared(asked, values.models, long=values.long, n_threads=values.threads)
            if values.fill:
                ready["fill"] = min(values.fill, ready.get("fill", ready["n_ctx"]))
            rows[name] = measure({**ready, "limited": values.limit}, address_space=values.address_space)
            print(shown(name, rows[name]), flush=True)
            if values.json:
                values.json.write_text(json.dumps(rows, indent=1), "utf-8")
    if values.only_report:
        print("\n".join(shown(name, found) for name, found in rows.items()))
    n_failed = summary(rows)
    if values.plot:
        from plots import plot_sizes

        plot_sizes(values.plot, [(p, m) for p, m, _ in (peaks(f) for f in rows.values() if "failed" not in f)])
    return 1 if n_failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
