"""Seconds to load a model that is transcribed already, in fresh processes.

    python benchmarks/load_time.py MODEL.gguf [--processes 5] [--cache FOLDER] [--max 0.5]

The first process transcribes and probes the model, and does not count. Imports do not count; reading the headers and
opening the session do. Files that were just written are in the page cache, so this is not a cold start from disk.
With ``--max`` the exit status is 1 if the median takes longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter


def load_once(options: argparse.Namespace) -> float:
    """Seconds of one ``load``."""
    import edge_spec

    start = perf_counter()
    with edge_spec.load(options.model, engine="onnx", speculation="off", n_ctx=options.ctx, cache_dir=options.cache):
        return perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder for transcriptions")
    parser.add_argument("--max", type=float, metavar="SECONDS")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(load_once(options)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, options.model, "--worker", f"--ctx={options.ctx}"]
        command += ["--cache", str(options.cache or scratch)]
        answers = [subprocess.check_output(command) for _ in range(options.processes + 1)]
    seconds = [float(json.loads(answer)) for answer in answers[1:]]
    median = statistics.median(seconds)
    print(
        f"{options.model}: median {median:.3f} s, {min(seconds):.3f} to {max(seconds):.3f} s, {len(seconds)} processes"
    )
    return 1 if options.max is not None and median > options.max else 0


if __name__ == "__main__":
    sys.exit(main())
