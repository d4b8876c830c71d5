"""Whether two versions of the sampler pick the same tokens, over a million random rows of logits.

    python benchmarks/compare_picks.py OLD_PYTHON NEW_PYTHON [--rows 1000000] [--baseline FILE]

Each PYTHON belongs to an environment that one of the versions is installed in, with the same NumPy. Both see the same
rows: of 1 to 20,000 logits, now and then 152,064, flat and peaked, with ties, infinities and NaN; under settings that
cover every transform alone and combined, with grammars, and with mirostat along texts that are accepted in parts.
Every pick is compared, and the exit code is 1 if a single one differs. Guesses only decide what is drafted; how many
of them differ is reported as well. With ``--baseline FILE`` what the old version picks is kept in FILE, and read from
there where it exists already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_GROUP = 40
"""Rows that share settings, prompt and width."""

_CHUNK = 25_000
_ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
_FILTERS: dict[str, list[Any]] = {
    "top_k": [1, 2, 5, 40, 64, 100, 200, 10_000],
    "top_p": [0.95, 0.9, 0.5, 0.999999, 0.01, 1e-9],
    "min_p": [0.05, 0.5, 1.0, 1e-3, 1e-9],
    "typical_p": [0.95, 0.5, 0.02],
    "top_n_sigma": [0.3, 1.0, 3.0],
}
_EXTRAS: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3},
    {"frequency_penalty": 0.4, "presence_penalty": -0.7, "penalty_window": -1},
    {"logit_bias": {0: 3.5, 1: float("-inf"), 2: -1.0}},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"xtc_probability": 0.6, "xtc_threshold": 0.08},
    {"xtc_probability": 1.0, "xtc_threshold": 0.3},
]


class _Allowed:
    """A grammar's state: some tokens may come, at random but always the same ones after the same text."""

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share

    def start(self, *_: object) -> _Allowed:
        return self

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        mixed = (np.asarray(list(tokens), dtype=np.uint64) + np.uint64(self._seed)) * np.uint64(0x9E3779B97F4A7C15)
        may: list[bool] = ((mixed >> np.uint64(40)).astype(np.float64) * 2.0**-24 < self._share).tolist()
        return may

    def after(self, token: int) -> _Allowed:
        return _Allowed(self._seed * 31 + token + 1 & 0xFFFFFFFF, self._share)


def _settings(rng: np.random.Generator) -> dict[str, Any]:
    kind = rng.integers(10)
    temperature = float(rng.choice([0.0, 1e-3, 0.2, 0.7, 0.8, 1.0, 1.0, 1.5]))
    chosen: dict[str, Any] = {"temperature": temperature, "seed": int(rng.integers(1 << 32))}
    if kind < 3:
        return chosen
    if kind == 3:
        eta = float(rng.choice([0.1, 0.5]))
        mirostat = {"mirostat": 2, "mirostat_tau": float(rng.choice([1.0, 3.0, 5.0])), "mirostat_eta": eta}
        return chosen | {"temperature": temperature or 0.9} | mirostat
    chosen |= _ALL | {name: some[rng.integers(len(some))] for name, some in _FILTERS.items() if rng.random() < 0.4}
    for extra in _EXTRAS:
        chosen |= extra if rng.random() < 0.12 else {}
    return chosen


def _row(rng: np.random.Generator, n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    row = (rng.standard_normal(n, dtype=np.float32) * np.float32(rng.choice([0.01, 0.5, 1, 2, 4, 8]))).astype(
        np.float32
    )
    kind = rng.integers(12)
    if kind == 0:
        row[:] = row[0]
    elif kind == 1:
        row = (np.round(row * 2) / 2).astype(np.float32)
    elif kind == 2:
        row[rng.integers(n, size=3)] += 15
    elif kind == 3:
        row += np.linspace(0, 20, n, dtype=np.float32)
    elif kind == 4:
        row += np.float32(rng.choice([-1e4, 1e4, 1e8]))
    if rng.random() < 0.1:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = -np.inf
    if rng.random() < 0.06:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = np.nan if rng.random() < 0.5 else -np.float32(np.nan)
    if rng.random() < 0.02:
        row[rng.integers(n, size=2)] = np.inf
    return row


def _width(rng: np.random.Generator) -> int:
    kind = rng.random()
    if kind < 0.002:
        return 152_064
    return int(
        rng.integers(1, 80) if kind < 0.3 else rng.integers(80, 2000) if kind < 0.9 else rng.integers(2000, 20_000)
    )


def _group(number: int) -> Iterator[tuple[int, str]]:
    """Picks and guesses of one group of rows."""
    from edge_spec.errors import GrammarDeadEnd, NoNumbers
    from edge_spec.sampling import Sampler, SamplerSettings

    rng = np.random.default_rng(number)
    n = _width(rng)
    settings = SamplerSettings(**_settings(rng))
    if settings.logit_bias:
        n = max(n, 3)
    grammar: Any = _Allowed(number, float(rng.choice([0.02, 0.3, 0.9]))) if rng.random() < 0.2 else None
    prompt = [int(token) for token in rng.integers(min(n, 30), size=rng.integers(0, 20))]
    breakers = {0: ((),), 1: ((2,),)}
    sampler = Sampler(settings, prompt, grammar=grammar, breakers=breakers)
    text = list(prompt)
    accepted = 0
    for place in range(_GROUP):
        row = _row(rng, n)
        try:
            token = sampler.pick(row, text)
            guess = repr([(x, round(chance, 9)) for x, chance in sampler.guess(row, text, 3)])
        except (GrammarDeadEnd, NoNumbers):
            token, guess = -1, ""
        yield token, guess
        if token < 0:
            continue
        # A text continues with what was picked; a grammar or mirostat must see it, or another token that may come.
        text.append(token)
        if place % 3 == 2:
            # Some of what was picked is not accepted.
            kept = accepted + int(rng.integers(1, len(text) - len(prompt) - accepted + 1))
            del text[len(prompt) + kept :]
            sampler.commit(text)
            accepted = kept


def _work(n_rows: int, path: Path) -> None:
    """Write all picks, and hashes of all guesses."""
    picks = np.empty(n_rows, dtype=np.int32)
    guesses = np.empty(n_rows, dtype=np.int64)
    for number in range(n_rows // _GROUP):
        for place, (token, guess) in enumerate(_group(number)):
            picks[number * _GROUP + place] = token
            guesses[number * _GROUP + place] = int.from_bytes(guess.encode()[-300:], "little") % ((1 << 61) - 1)
        if number % (_CHUNK // _GROUP) == 0:
            print(f"{path.stem}: {number * _GROUP:,} rows", file=sys.stderr, flush=True)
    np.savez(path, picks=picks, guesses=guesses)


def main() -> int:
    """Compare; the exit code says whether all picks are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--baseline", type=Path)
    options = parser.parse_args()
    n_rows = options.rows // _GROUP * _GROUP
    with tempfile.TemporaryDirectory() as folder:
        old = options.baseline or Path(folder, "old.npz")
        new = Path(folder, "new.npz")
        for python, path in ((options.old, old), (options.new, new)):
            if not path.exists():
                # Not from the folder of a checkout, which would be imported instead of what is installed.
                command = [python, str(Path(__file__).resolve()), "--worker", str(n_rows), str(path.resolve())]
                subprocess.run(command, check=True, cwd=folder)
        with np.load(old) as before, np.load(new) as after:
            differing = (before["picks"] != after["picks"]).nonzero()[0]
            n_guesses = int((before["guesses"] != after["guesses"]).sum())
            n_different = len(set(before["picks"].tolist()))
    print(f"{n_rows:,} picks of {n_different:,} tokens, {differing.size} differ; {n_guesses} guesses differ")
    for place in differing[:20].tolist():
        print(f"  row {place % _GROUP} of group {place // _GROUP}")
    return int(differing.size > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main())
