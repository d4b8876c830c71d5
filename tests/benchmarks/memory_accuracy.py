"""Predicted against measured memory, plan by plan, each in a process of its own, if wanted under a hard limit.

    python tests/benchmarks/memory_accuracy.py --models FOLDER [--only TEXT] [--json FILE] [--limit]

Writes models of real shapes with random weights into FOLDER (some 6 GB; remove it afterwards), then for every plan
starts a process that loads it and writes. With --limit the process gets no more than its budget. Where the machine has
control groups, version 1 or 2, that this user may make, the limit is one of them and holds for everything, cached and
mapped pages included, which the system then takes back early; elsewhere it is one on address space. Sizes are
compared without it. Prints a table and a scatter of errors by size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_shapes import SHAPES, write_shape

MIB = 1 << 20


def grid() -> Iterator[dict[str, Any]]:
    """Plans: model, kind of weights, context, and arguments of ``load``."""
    for mode in ("off", "ngram", "sequence", "tree", "hierarchy"):
        yield {"model": "demo", "n_ctx": 1024, "speculation": mode}
    yield {"model": "demo", "n_ctx": 512, "speculation": "hierarchy", "kv_k": "f16"}
    yield {"model": "demo", "n_ctx": 512, "speculation": "sequence", "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "off", "repack": False}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "off", "engine": "onnx"}
    yield {"model": "demo", "n_ctx": 1024, "speculation": "sequence", "engine": "onnx"}
    for kind in ("Q4_0", "Q4_K", "Q8_0"):
        yield {"model": "llama-20m", "kind": kind, "n_ctx": 512}
        yield {"model": "llama-0.1b", "kind": kind, "n_ctx": 2048}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 512}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 2048, "kv_k": "f16"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 2048, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 4096, "kv_v": "q8_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 2048}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 16384, "fill": 2048, "kv_k": "q4_0", "kv_v": "q4_0"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "repack": False}
    yield {"model": "llama-0.1b", "kind": "Q4_K", "n_ctx": 1024, "repack": False}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "prefill_chunk": 128, "max_rows": 8}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "draft": "llama-20m", "speculation": "sequence"}
    yield {"model": "llama-0.1b", "kind": "Q8_0", "n_ctx": 1024, "draft": "llama-20m", "speculation": "tree"}
    yield {"model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "engine": "onnx"}
    yield {"model": "llama-0.1b", "kind": "Q8_0", "n_ctx": 600, "engine": "onnx"}
    yield {
        "model": "llama-0.1b", "kind": "Q4_0", "n_ctx": 1024, "engine": "onnx", "draft": "llama-20m",
        "speculation": "sequence",
    }  # fmt: skip
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 1024}
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 1024, "repack": False}
    yield {"model": "qwen2-0.5b", "kind": "Q8_0", "n_ctx": 1024, "kv_k": "f16"}
    yield {"model": "qwen2-0.5b", "kind": "Q4_0", "n_ctx": 600, "engine": "onnx"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 2048}
    yield {"model": "llama-0.5b", "kind": "Q4_K", "n_ctx": 1024, "kv_k": "q8_0", "kv_v": "q8_0"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 600, "engine": "onnx"}
    yield {"model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 1024, "draft": "llama-0.1b", "speculation": "sequence"}
    yield {
        "model": "llama-0.5b", "kind": "Q4_0", "n_ctx": 1024, "draft": "llama-20m", "middle": "llama-0.1b",
        "speculation": "hierarchy",
    }  # fmt: skip
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 600}
    yield {"model": "gemma3-1b", "kind": "Q4_0", "n_ctx": 4096, "fill": 600, "kv_k": "q8_0", "kv_v": "q8_0"}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 600}
    yield {"model": "llama-1b", "kind": "Q4_0", "n_ctx": 600, "repack": False}
    yield {"model": "llama-1b", "kind": "Q4_K", "n_ctx": 4096, "fill": 600}
    yield {"model": "llama-1b", "kind": "Q8_0", "n_ctx": 600}
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 512}
    yield {"model": "llama-3b", "kind": "Q4_0", "n_ctx": 2048, "fill": 300, "kv_k": "q4_0", "kv_v": "q4_0"}


def model_path(folder: Path, name: str, kind: str) -> Path:
    """The file of a shape, written if it is not there yet."""
    path = folder / f"{name}-{kind.lower()}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_shape(path.with_suffix(".part"), SHAPES[name], kind)
        path.with_suffix(".part").rename(path)
    return path


# --- the process that is measured


def session(asked: dict[str, Any], group: str) -> dict[str, Any]:
    """Plan, put the limit in place, load, fill, write; returns what was planned and what it took, by phase."""
    import edge_spec.loading as loading
    from edge_spec.backends.llama.library import library
    from edge_spec.budget import Budget, budget_of
    from edge_spec.memory import usage

    library()
    if asked.get("engine") == "onnx":
        import onnxruntime  # noqa: F401
    phases: dict[str, dict[str, int]] = {}

    def phase(name: str) -> None:
        now = usage()
        peak = _peak_resident_bytes() or now.resident_bytes
        shared = now.resident_bytes - now.unique_bytes
        phases[name] = {**vars(now), "peak_resident_bytes": peak, "peak_unique_bytes": peak - shared}
        _forget_peak()

    phase("import")
    first_held = usage().resident_bytes
    arguments = {name: asked[name] for name in asked if name not in ("fill", "new", "model", "limited")}
    plan = loading.plan(asked["model"], memory=1 << 40, held_bytes=first_held, **arguments)
    phase("plan")
    limit = plan.chosen.needed_bytes
    held = budget_of(None).held_bytes
    if asked.pop("limited"):
        _limit(group, limit, held)
    # A second look at the process would find it grown by the first.
    setattr(loading, "budget_of", lambda memory: Budget(budget_bytes=limit, held_bytes=first_held))  # noqa: B010
    with loading.load(asked["model"], memory=limit, cache_dir=asked.get("cache_dir"), **{
        name: value for name, value in arguments.items() if name != "cache_dir"
    }) as model:  # fmt: skip
        phase("load")
        n_new = asked["new"]
        draw = random.Random(1)
        most = min(asked.get("fill", model.n_ctx), model.n_ctx)
        tokens = [draw.randrange(300, model.n_vocab - 2) for _ in range(max(4, most - n_new - 1))]
        done = model.generate(tokens=tokens, max_tokens=n_new, seed=1, ignore_eos=True)
        done.read()
        phase("write")
        model.ledger.check_integrity()
        lines = model.ledger.report()["lines"]
    return {
        "predicted_bytes": plan.chosen.peak_bytes, "limit_bytes": limit, "phases": phases, "lines": lines,
        "tokens": len(done.token_ids), "notes": list(model.notes), "highest_in_group": _highest_in_group(group),
    }  # fmt: skip


def _peak_resident_bytes() -> int | None:
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return None
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


_LIMITS, _HIGHEST = ("memory.limit_in_bytes", "memory.max"), ("memory.max_usage_in_bytes", "memory.peak")


def _limit(group: str, limit: int, held: int) -> None:
    if group:
        next(Path(group) / name for name in _LIMITS if (Path(group) / name).exists()).write_text(str(limit), "ascii")
        return
    import resource

    import psutil

    # Address space is not memory: libraries and stacks are mapped and never touched.
    room = psutil.Process().memory_info().vms + limit - held + 512 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (room, room))


def _highest_in_group(group: str) -> int | None:
    found = [Path(group) / name for name in _HIGHEST if group and (Path(group) / name).exists()]
    return int(found[0].read_text("ascii")) if found else None


# --- the process that starts them


def make_group() -> str:
    """A control group for one process below our own; empty where there is no such thing."""
    own = {line.split(":")[1]: line.split(":")[2] for line in Path("/proc/self/cgroup").read_text("ascii").split()}
    for controllers, place in own.items():
        root = "/sys/fs/cgroup" if controllers == "" else "/sys/fs/cgroup/memory"
        if controllers not in ("", "memory"):
            continue
        group = Path(f"{root}{place}") / f"edge-spec-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if any((group / name).exists() for name in _LIMITS):
            return str(group)
        group.rmdir()
    return ""


def forget_files(asked: dict[str, Any]) -> None:
    """Have the system drop what it keeps of the model files: pages count for the group that reads them first."""
    if not hasattr(os, "posix_fadvise"):
        return
    from edge_spec.models import resolve_family

    family = resolve_family(asked["model"])
    files = [family.target, family.draft, family.middle, asked.get("draft"), asked.get("middle")]
    if asked.get("cache_dir"):
        files += Path(asked["cache_dir"]).glob("onnx/*/weights.bin")
    for path in filter(None, files):
        with Path(path).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """One plan in its own process."""
    if asked["limited"]:
        forget_files(asked)
    group = make_group() if Path("/proc/self/cgroup").exists() else ""

    def enter() -> None:
        if group:
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()), "ascii")

    command = [sys.executable, __file__, "--session", json.dumps(asked), "--group", group]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    try:
        done = subprocess.run(command, capture_output=True, preexec_fn=enter, env=environment, check=False)
    finally:
        if group:
            Path(group).rmdir()
    if done.returncode != 0:
        return {"failed": done.returncode, "said": done.stderr.decode("utf-8", "replace")[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def prepared(asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of ``load``, with the files there."""
    asked = dict(asked)
    kind = asked.pop("kind", "Q4_0")
    if asked["model"] != "demo":
        for role in ("draft", "middle"):
            if role in asked:
                asked[role] = str(model_path(folder, asked[role], "Q4_0"))
        asked["model"] = str(model_path(folder, asked["model"], kind))
    big = any(size in asked["model"] for size in ("1b", "3b")) and "0.1b" not in asked["model"]
    asked.setdefault("new", 24 if big else 64)
    asked.setdefault("speculation", "off")
    asked.setdefault("n_threads", 1)
    asked.setdefault("prefill_chunk", 512)
    asked.setdefault("max_rows", 16)
    if asked.get("engine") != "onnx":
        asked.setdefault("repack", True)
    if asked.get("engine") == "onnx":  # made before, by a process that nobody measures
        from edge_spec.models import inspect, resolve_family
        from edge_spec.models.transcribe import transcribe

        asked["cache_dir"] = str(folder / "cache")
        family = resolve_family(asked["model"])
        for path in (family.target, asked.get("draft") or family.draft):
            if path:
                transcribe(inspect(path), folder / "cache" / "onnx")
        for old in (folder / "cache" / "probes").glob("*.json"):
            old.unlink()
    else:
        asked["cache_dir"] = None
    return asked


def named(asked: dict[str, Any]) -> str:
    """A plan in a few words."""
    words = [asked["model"], asked.get("kind", "")]
    words += [f"{k}={v}" for k, v in asked.items() if k not in ("model", "kind", "fill", "new")]
    return " ".join(word for word in words if word)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("benchmark-models"))
    parser.add_argument("--only", default="", help="plans with this in their name")
    parser.add_argument("--first", type=int, default=0, help="leave out so many plans")
    parser.add_argument("--tokens", type=int, help="tokens that each session writes")
    parser.add_argument("--limit", action="store_true", help="put the hard limit in place; it makes sizes smaller")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--session")
    parser.add_argument("--group", default="")
    values = parser.parse_args(arguments)
    if values.session:
        print(json.dumps(session(json.loads(values.session), values.group)))
        return 0
    rows: list[tuple[str, dict[str, Any]]] = []
    for asked in list(grid())[values.first :]:
        if values.only not in named(asked):
            continue
        if values.tokens:
            asked["new"] = values.tokens
        found = measure({**prepared(asked, values.models), "limited": values.limit})
        rows.append((named(asked), found))
        print(shown(named(asked), found), flush=True)
        if values.json:
            values.json.write_text(json.dumps(rows, indent=1), "utf-8")
    summary(rows)
    return 1 if any("failed" in found for _, found in rows) else 0


def shown(name: str, found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"{name}: FAILED {found['failed']} {found['said']}"
    predicted, peak, unique = peaks(found)
    group = found["highest_in_group"]
    return (
        f"{name:<92} {predicted / MIB:8.1f} {peak / MIB:8.1f} {(predicted - peak) / MIB:+6.1f} "
        f"{predicted / peak - 1:+6.1%}"
        f" | unique {unique / MIB:8.1f} {unique_error(found) / MIB:+6.1f} | budget {found['limit_bytes'] / MIB:8.1f}"
        f" in group {-1 if group is None else group / MIB:8.1f} | {found['tokens']} tokens"
    )


def unique_error(found: dict[str, Any]) -> int:
    """By how much more unique bytes were predicted than measured; what was shared before is predicted to stay so."""
    before = found["phases"]["plan"]
    predicted, _, unique = peaks(found)
    return predicted - (before["resident_bytes"] - before["unique_bytes"]) - unique


def peaks(found: dict[str, Any]) -> tuple[int, int, int]:
    """Predicted, highest resident and highest unique bytes."""
    phases = [found["phases"][name] for name in ("load", "write")]
    return (
        found["predicted_bytes"],
        max(phase["peak_resident_bytes"] for phase in phases),
        max(phase["peak_unique_bytes"] for phase in phases),
    )


def good(found: dict[str, Any]) -> bool:
    """Within 5 % or 8 MiB, and not below by more than 2 % or 4 MiB."""
    predicted, peak, _ = peaks(found)
    error = predicted - peak
    return abs(error) <= max(0.05 * peak, 8 * MIB) and -error <= max(0.02 * peak, 4 * MIB)


def summary(rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    measured = [found for _, found in rows if "failed" not in found]
    if not measured:
        return
    errors = sorted(abs(predicted / peak - 1) for predicted, peak, _ in map(peaks, measured))
    print(f"\n{len(measured)} of {len(rows)} plans ran; {sum(map(good, measured))} within the bounds;")
    print(f"median error {errors[len(errors) // 2]:.1%}, largest {errors[-1]:.1%}\n")
    print("error in percent (upwards: more predicted than measured) by the root of the measured size, 64 MiB to 3 GiB")
    points = {}
    for predicted, peak, _ in map(peaks, measured):
        row = max(-6, min(8, round(100 * (predicted / peak - 1))))
        points[row, min(47, int(8 * ((peak / MIB / 64) ** 0.5 - 1)))] = "o"
    for row in range(8, -7, -1):
        print(f"{row:+3} |" + "".join(points.get((row, column), "-" if row == 0 else " ") for column in range(48)))


if __name__ == "__main__":
    sys.exit(main())
