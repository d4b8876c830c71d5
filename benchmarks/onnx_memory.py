"""Memory of a model on ONNX Runtime, compared with its file, its KV cache and its buffers.

    python benchmarks/onnx_memory.py [model.gguf ...] [--ctx 600] [--cache FOLDER]

For every model a process of its own loads a transcription that exists already, reads a prompt that fills the context,
and writes. The highest resident size of each step is compared with the sum of its parts: the process without a model
(libraries, as planned), the file of the weights, the KV cache, the tokenizer's tables, the buffers, and while a prompt
is read what that takes.

Of the mapped weights it prints how much is resident, how much was written to (the rest can be dropped by the system at
any time), and how much is left after the system was asked to drop it; then the same text is written again. Linux only.
Nothing is timed. The exit status is 1 if the size with a full context is more than 5 % off, or before that more than
5 % above, or if the text differs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from memory_session import MIB, forget_peak, peak_resident_bytes

MAX_ERROR = 0.05
PAGE_OUT = 21
"""``MADV_PAGEOUT``: write back and drop these pages now."""


def held_by(path: Path) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Sums over this process's mappings of a file, by names of /proc/self/smaps, and their addresses and sizes."""
    sums: dict[str, int] = {}
    places: list[tuple[int, int]] = []
    ours = False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            ours = line.endswith(str(path))
            if ours:
                start, end = (int(text, 16) for text in head.groups())
                places.append((start, end - start))
        elif ours and line.endswith(" kB"):
            name, number = line.split(":")
            sums[name] = sums.get(name, 0) + (int(number.split()[0]) << 10)
    return sums, places


def session(model: str, n_ctx: int, cache: Path) -> dict[str, Any]:
    """Return what the measured process does."""
    import edge_spec
    from edge_spec.engines.onnx.engine import onnx_footprint
    from edge_spec.engines.onnx.transcription.cache import transcribe
    from edge_spec.engines.settings import ModelSettings
    from edge_spec.memory import usage
    from edge_spec.models import inspect, resolve_family

    asked: dict[str, Any] = {"engine": "onnx", "speculation": "off", "cache_dir": cache, "n_threads": 2}
    file = inspect(resolve_family(model).target)
    parts = onnx_footprint(file, ModelSettings(n_ctx=n_ctx, n_threads=2))
    weights = transcribe(file, cache / "onnx").folder / "weights.bin"
    steps: dict[str, int] = {}

    def step(name: str) -> None:
        steps[name] = peak_resident_bytes() or usage().resident_bytes
        forget_peak()

    forget_peak()
    with edge_spec.load(model, n_ctx=n_ctx, **asked) as loaded:
        step("load")
        planned = {(line.owner, line.name): line.predicted_bytes for line in loaded.ledger}
        tokens = [300 + place % (file.n_vocab - 400) for place in range(n_ctx - 40)]

        def write() -> list[int]:
            reply = loaded.generate(tokens=tokens, max_tokens=32, seed=1, ignore_eos=True)
            reply.read()
            return list(reply.token_ids)

        written = write()
        step("prompt")
        now, (sums, places) = usage(), held_by(weights)
        libc = ctypes.CDLL(None, use_errno=True)
        for start, n_bytes in places:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(n_bytes), PAGE_OUT)
        dropped, _ = held_by(weights)
        same = write() == written
    return {
        "process": planned["process", "interpreter and libraries"],
        "steps": steps,
        "file": weights.stat().st_size,
        "vocabulary": planned["target", "vocabulary"],
        "kv": parts.kv_cache_bytes,
        "buffers": parts.compute_bytes + parts.logits_bytes,
        "reading": parts.reading_bytes,
        "mapped": sum(n_bytes for _, n_bytes in places),
        "rss": sums["Rss"],
        "pss": sums["Pss"],
        "dirty": sums["Private_Dirty"] + sums["Shared_Dirty"],
        "anonymous": sums["Anonymous"],
        "dropped": dropped["Rss"],
        "same": same,
        "unique": now.unique_bytes,
        "own": now.anonymous_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--ctx", type=int, default=600)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--session", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.session:
        print(json.dumps(session(options.models[0], options.ctx, options.cache)))
        return 0
    n_wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        cache = options.cache or Path(scratch)
        for model in options.models:
            command = [sys.executable, __file__, model, "--session", "--ctx", str(options.ctx), "--cache", str(cache)]
            for _ in range(2):  # the first one transcribes and probes
                done = subprocess.run(
                    command, check=True, capture_output=True, text=True, env=os.environ | {"OMP_WAIT_POLICY": "passive"}
                )
            n_wrong += report(model, json.loads(done.stdout.splitlines()[-1]))
    print(f"{n_wrong} of {3 * len(options.models)} checks failed")
    return 1 if n_wrong else 0


def report(model: str, found: dict[str, Any]) -> int:
    """Print what one process found; returns the number of failed checks."""
    n_wrong = 0
    m = {name: value / MIB for name, value in found.items() if isinstance(value, int) and name != "same"}
    print(f"{model}: process {m['process']:.1f} MiB, file {m['file']:.1f}, vocabulary {m['vocabulary']:.1f}, ", end="")
    print(f"KV {m['kv']:.1f}, buffers {m['buffers']:.1f}, while reading {m['reading']:.1f}")
    held = sum(m[name] for name in ("process", "file", "vocabulary", "kv", "buffers"))
    for name, expected in (("load", held), ("prompt", held + m["reading"])):
        highest = found["steps"][name] / MIB
        # Cache and buffers are not touched before something is computed.
        least = 1 - MAX_ERROR if name == "prompt" else 0.0
        wrong = not least <= highest / expected <= 1 + MAX_ERROR
        n_wrong += wrong
        print(
            f"  highest by {name}: {highest:.1f} MiB, {expected:.1f} expected ({highest / expected - 1:+.1%})"
            f"{' TOO FAR OFF' * wrong}"
        )
    print(f"  unique {m['unique']:.1f}, without a file {m['own']:.1f}")
    print(
        f"  weights: {m['mapped']:.1f} mapped, {m['rss']:.1f} resident (PSS {m['pss']:.1f}), "
        f"written to {m['dirty']:.1f}, without a file {m['anonymous']:.1f}; after the system was asked to drop them "
        f"{m['dropped']:.1f} resident, then {'the same text' if found['same'] else 'ANOTHER TEXT'}"
    )
    return n_wrong + (not found["same"])


if __name__ == "__main__":
    sys.exit(main())
