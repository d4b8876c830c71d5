"""Whether two installed versions of edge-spec write the same token ids under the same numerics profiles.

    python benchmarks/compare_tokens.py OLD_PYTHON NEW_PYTHON [--model demo] [--n-ctx 512] [--max-tokens 64]

Each PYTHON belongs to an environment that one of the versions is installed in, with the same libraries. Both write the
same prompts on both engines, in every mode that the model allows, with every sampler below; caches are in a folder of
their own. Printed is every case that differs, and any makes the exit code 1. Where a change of profiles is intended,
texts may differ with them: say so in the changelog.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

PROMPTS = (
    "Tell me a short story about a dog who is afraid of the rain.",
    "Can you book a table for four people in an Italian restaurant on Friday?",
)
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "defaults": {},
    "filters": {"top_k": 7, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9, "temperature": 1.2},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3, "dry_multiplier": 0.9},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "grammar": {"grammar": 'root ::= "The " ("dog" | "cat") " " [a-z]{3,9} (" and " [a-z]{3,9})? "."'},
}


def cases_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the version that runs this file does: profiles and token ids by case."""
    from edge_spec import load
    from edge_spec.loading import possible_modes

    found: dict[str, Any] = {}
    for engine in ("llama", "onnx"):
        for mode in ("off", "auto", *possible_modes(options.model, engine=engine)):
            with load(
                options.model, engine=engine, speculation=mode, n_ctx=options.n_ctx, n_threads=1, cache_dir="cache"
            ) as model:
                found[f"{engine}, {mode}: profile"] = asdict(model.profile)
                for name, sampler in SAMPLERS.items():
                    for number, prompt in enumerate(PROMPTS):
                        reply = model.generate(prompt, seed=number + 1, max_tokens=options.max_tokens, **sampler)
                        reply.read()
                        found[f"{engine}, {mode}: {name}, prompt {number + 1}"] = reply.token_ids
    return found


def main() -> int:
    """Compare; the exit code says whether everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", help="of the environments of both versions")
    parser.add_argument("--model", default="demo", help="a name or an absolute path")
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(cases_of(options)))
        return 0
    found = []
    for python in options.pythons:
        with tempfile.TemporaryDirectory() as folder:
            # Not in a checkout, which would be imported instead of what is installed.
            command = [python, "-P", str(Path(__file__).resolve()), "--worker", *sys.argv[1:]]
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
                stdout=subprocess.PIPE,
                check=True,
            )
            found.append(json.loads(done.stdout))
    old, new = found
    different = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    for name in different:
        print(f"{name}:\n  {old.get(name)}\n  {new.get(name)}")
    print(f"{len(old)} and {len(new)} cases, {len(different)} differ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
