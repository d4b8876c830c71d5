"""Whether two installed versions of edge-spec write the same tokens under the same numerics profiles.

    python benchmarks/compare_tokens.py OLD_PYTHON NEW_PYTHON [--model demo] [--small "hybrid lfm2"]
        [--small "gemma4 e2b"] [--engine onnx] [--part conversations] [--max-tokens 64]

Each PYTHON belongs to an environment that one of the versions is installed in, with the same libraries. Both write the
corpus of ``token_corpus.py``: replies with every sampler, up to sixteen side by side, conversations that outgrow their
context, are edited, retried, cancelled, saved, loaded and pushed out of their cells, a server's and the command's, in
every mode that the model allows and on both engines; caches are in a folder of their own. Printed is every case that
differs, and any makes the exit code 1. Where a change of profiles is intended, texts may differ with them: say so in
the changelog.

``--small`` names models of random weights as ``tests/attack/hunter.py`` plays them (families, hybrids, experts, the
demo with a head), which are written here with the edge-spec that runs this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ENGINES = ("llama", "onnx")
_PARTS = ("replies", "together", "conversations", "turns", "http", "command")


def main() -> int:
    """Compare; the exit code says whether everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", help="of the environments of both versions")
    parser.add_argument("--model", action="append", default=[], help="a name or an absolute path; demo if none is")
    parser.add_argument("--small", action="append", default=[], help="a model that the hunter plays")
    parser.add_argument("--engine", action="append", choices=_ENGINES, default=[])
    parser.add_argument("--part", action="append", choices=_PARTS, default=[])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _write_corpus(json.loads(options.worker))
        return 0
    if len(options.pythons) != 2:
        parser.error("name the Python of two environments")
    with tempfile.TemporaryDirectory() as folder:
        models = [{"model": name} for name in options.model or ([] if options.small else ["demo"])]
        models += [_small(name, Path(folder)) for name in options.small]
        asked = {
            "engines": options.engine or _ENGINES,
            "parts": options.part or _PARTS,
            "max_tokens": options.max_tokens,
        }
        return _compared([{**asked, **model} for model in models], options.pythons)


def _compared(asked: list[dict[str, Any]], pythons: list[str]) -> int:
    n_cases = n_different = 0
    for each in asked:
        old, new = (_corpus_of(python, each) for python in pythons)
        different = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
        for name in different:
            print(f"{each['model']}, {name}:\n  {old.get(name)}\n  {new.get(name)}")
        print(f"{each['model']}: {len(old)} and {len(new)} cases, {len(different)} differ", flush=True)
        n_cases, n_different = n_cases + len(new), n_different + len(different)
    print(f"{n_cases} cases, {n_different} differ")
    return int(bool(n_different or not n_cases))


def _corpus_of(python: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the version of an environment writes, by case."""
    with tempfile.TemporaryDirectory() as folder:
        # Not in a checkout, which would be imported instead of what is installed.
        command = [python, "-P", str(Path(__file__).resolve()), "--worker", json.dumps(asked)]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _write_corpus(asked: dict[str, Any]) -> None:
    """Print the corpus of the version that runs this file as JSON."""
    sys.path.insert(0, str(_HERE))
    # Where several programs compute at once, threads that spin while they wait would take the time of the others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from token_corpus import corpus

    draft: dict[str, Any] = {role: asked[role] for role in ("draft", "intermediate") if role in asked}
    found: dict[str, Any] = {}
    for engine in asked["engines"]:
        found |= corpus(
            asked["model"], engine=engine, parts=asked["parts"], draft=draft, max_tokens=asked["max_tokens"]
        )
    print(json.dumps(found))


def _small(name: str, folder: Path) -> dict[str, Any]:
    """Write one of the hunter's models; returns the paths of its files by role."""
    for part in ("tests/attack", "tests/support", "benchmarks"):
        sys.path.insert(0, str(_HERE.parent / part))
    hunted = import_module("hunted_models").HuntedModels(folder)[name]
    roles = {"model": hunted.target, "draft": hunted.draft, "intermediate": hunted.intermediate}
    return {role: str(path) for role, path in roles.items() if path is not None}


if __name__ == "__main__":
    sys.exit(main())
