"""Seconds to load a model that is transcribed already, in fresh processes.

    python benchmarks/load_time.py MODEL.gguf [--processes 5] [--cache FOLDER] [--max 0.5]
    python benchmarks/load_time.py smollm2 --first-token [--processes 11] [--max 1]

The first process transcribes and probes the model, and does not count. Imports do not count; reading the headers and
opening the session do. Files that were just written are in the page cache, so this is not a cold start from disk.
With ``--max`` the exit status is 1 if the median takes longer.

With ``--first-token`` it is the seconds from the start of ``edge-spec run`` to the first piece of its answer, with
everything as it comes: the interpreter and imports count.
"""

from __future__ import annotations

import argparse
import json
import os
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


def first_token(options: argparse.Namespace, cache: str) -> float:
    """Seconds of one ``edge-spec run`` to its first piece of text."""
    command = [sys.executable, "-m", "edge_spec", "run", options.model, "--cache-dir", cache, "-n", "8", "-p", "Hello"]
    begun = perf_counter()
    with subprocess.Popen(
        [*command, "-p", "Tell me a story."], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        os.read(run.stdout.fileno(), 1)
        seconds = perf_counter() - begun
        run.stdout.read()
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder for transcriptions")
    parser.add_argument("--max", type=float, metavar="SECONDS")
    parser.add_argument("--first-token", action="store_true", help="of a run of the command, from its start")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(load_once(options)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        cache = str(options.cache or scratch)
        command = [sys.executable, __file__, options.model, "--worker", f"--ctx={options.ctx}", "--cache", cache]
        seconds = [
            first_token(options, cache) if options.first_token else float(json.loads(subprocess.check_output(command)))
            for _ in range(options.processes + 1)
        ][1:]
    median = statistics.median(seconds)
    print(
        f"{options.model}: median {median:.3f} s, {min(seconds):.3f} to {max(seconds):.3f} s, {len(seconds)} processes"
    )
    return 1 if options.max is not None and median > options.max else 0


if __name__ == "__main__":
    sys.exit(main())
