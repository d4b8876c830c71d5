"""The draw in C is the draw in Python, bit for bit."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_spec.errors import SettingsError
from edge_spec.sampling import Asked, Sampler, SamplerSettings, guess_all
from edge_spec.sampling import sampler as sampler_module
from edge_spec.sampling.adjustments import bias_changes, changes
from edge_spec.sampling.native import NativeDraw, native_draw, native_guesses
from edge_spec.tokens.kept_tokens import KeptTokens

_CHECKOUT = Path(__file__).parents[2]
_DRAW = _CHECKOUT / "edge_spec/sampling/src/draw.c"

pytestmark = pytest.mark.skipif(
    native_draw(SamplerSettings()) is None, reason="the package was installed without a C compiler"
)

WIDTHS = (1, 2, 5, 40, 63, 64, 65, 300, 1000, 8192, 20_000)


def rows(number: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A row of any width and spread; some with ties, some with infinities and NaN of both signs."""
    n = int(rng.choice(WIDTHS))
    row = (rng.standard_normal(n) * float(rng.choice([0.3, 1, 2, 4, 8]))).astype(np.float32)
    if number % 5 == 0:
        row = np.round(row)
    if number % 7 == 0:
        row[rng.integers(0, n, n // 3 + 1)] = -np.inf
    if number % 11 == 0 and n > 1:
        row[rng.integers(0, n)] = np.nan if number % 2 else -np.float32(np.nan)
    if number % 13 == 0:
        row[rng.integers(0, n)] = np.inf
    return row


def settings(number: int, rng: np.random.Generator) -> SamplerSettings:
    return SamplerSettings(
        temperature=float(rng.choice([0, 1e-3, 0.2, 0.7, 1, 1.5])),
        top_k=int(rng.choice([0, 1, 5, 40, 100])),
        top_p=float(rng.choice([1e-6, 0.3, 0.9, 0.95, 1])),
        min_p=float(rng.choice([0, 0.05, 0.001, 0.3, 1])),
        seed=number,
    )


def scattered(row: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The same numbers, but not one after the other in memory: what C leaves to Python."""
    return np.repeat(row, 2)[::2]


def guesses(native: NativeDraw, row: np.ndarray[Any, np.dtype[np.float32]], n: int) -> list[tuple[int, float]]:
    return native_guesses(native.asked(row[None], 1, 0, []), n)[0]


@pytest.mark.long
def test_draw_in_c_equals_draw_in_python() -> None:
    rng = np.random.default_rng(5)
    n_drawn = 0
    for number in range(3000):
        row = rows(number, rng)
        sampler = Sampler(settings(number, rng), [1, 2])
        text = [1, 2] + [3] * (number % 9)
        native = native_draw(sampler.settings)
        assert native is not None
        n_drawn += native.pick(row, sampler.stream, len(text) - 2) >= 0
        assert sampler.pick(row, text) == sampler.pick(scattered(row), text)
        assert sampler.guess(row, text, row.size) == sampler.guess(scattered(row), text, row.size)
    assert n_drawn > 1500, "the usual case must be one for C"


@pytest.mark.long
def test_pick_in_c_after_bias_and_dry_equals_pick_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions of any length, biases of any size, ties, infinities and NaN of both signs, up to too many changes."""
    rng = np.random.default_rng(7)
    n_picked = n_same = 0
    for number in range(3000):
        row = rows(number, rng)
        if np.isnan(row).all():
            continue
        bias = rng.choice(row.size, min(row.size, int(rng.choice([0, 1, 5, 120]))), replace=False)
        amounts = rng.choice([-np.inf, -1e9, -2.5, 0.1, 3, 1e9], bias.size)
        asked = replace(
            settings(number, rng),
            logit_bias=dict(zip(bias.tolist(), amounts.tolist(), strict=True)),
            dry_multiplier=float(rng.choice([0, 0.8, 1e9])),
            dry_allowed_length=int(rng.integers(1, 4)),
        )
        text = [int(token) for token in rng.integers(0, min(row.size, 4), rng.integers(2, 60))]
        sampler = Sampler(asked, text[:2])
        native = native_draw(asked)
        assert native is not None
        n_picked += native.pick(row, sampler.stream, len(text) - 2, changes(text, asked, {}, bias_changes(asked))) >= 0
        with monkeypatch.context() as without_c:
            without_c.setattr(sampler_module, "native_draw", lambda settings, kept=None: None)
            reference = Sampler(asked, text[:2])
        picked = sampler.pick(row, text)
        assert picked == reference.pick(row, text), number
        n = int(rng.choice([1, 3, row.size]))
        assert sampler.guess(row, text, n) == reference.guess(row, text, n), number
        n_same += picked == Sampler(replace(asked, logit_bias={}, dry_multiplier=0), text[:2]).pick(row, text)
    assert n_picked > 1500, "the usual case must be one for C"
    assert n_same < 2500, "what is changed must matter"


def test_a_bias_beyond_a_row_is_refused_though_c_picks() -> None:
    sampler = Sampler(SamplerSettings(logit_bias={3: 1.0}), [1])
    with pytest.raises(SettingsError, match="names token 3; this model has 3 tokens"):
        sampler.pick(np.zeros(3, np.float32), [1])
    assert sampler.pick(np.array([-9, -9, -9, 0], np.float32), [1]) == 3


@pytest.mark.long
def test_draw_in_c_from_some_tokens_equals_draw_in_python() -> None:
    """Rows with a column for each kept token only: the noise is that of the tokens' own ids."""
    rng = np.random.default_rng(6)
    for number in range(600):
        row = rows(number, rng)
        kept = KeptTokens(np.sort(rng.choice(40_000, row.size, replace=False)), 40_000)
        biased = rng.choice(40_000, int(rng.choice([0, 50])), replace=False)
        bias = {int(token): 2.0 for token in (*biased, *kept.ids[: len(biased) // 10])}
        repeats = float(rng.choice([0, 0.8]))
        asked = replace(settings(number, rng), logit_bias=bias, dry_multiplier=repeats)
        sampler = Sampler(asked, [1, 2]).over(kept)
        text = [1, 2] + [int(kept.ids[0])] * (number % 9)
        assert sampler.pick(row, text) == sampler.pick(scattered(row), text)
        assert sampler.guess(row, text, row.size) == sampler.guess(scattered(row), text, row.size)


def test_a_row_of_another_width_than_the_kept_tokens_is_left_to_python() -> None:
    native = native_draw(SamplerSettings(), KeptTokens([3, 5, 8], 10))
    assert native is not None
    row, wide = np.array([0, 9, 0], np.float32), np.array([0, 9, 0, 0], np.float32)
    assert guesses(native, row, 1)[0][0] == native.pick(row, 1, 0) == 5
    assert guesses(native, wide, 1) == []
    assert native.pick(wide, 1, 0) == -1


def test_rows_that_are_not_contiguous_memory_are_left_to_python() -> None:
    native = native_draw(SamplerSettings())
    assert native is not None
    row = np.linspace(0, 5, 100, dtype=np.float32)
    assert guesses(native, row, 3)
    assert guesses(native, scattered(row), 3) == []
    assert native.pick(scattered(row), 1, 0) == -1


@pytest.mark.long
def test_rows_that_are_guessed_together_are_guessed_as_alone() -> None:
    """Samplers of any settings, of some tokens or all, with and without bias, DRY, penalties and what C leaves to
    Python; texts of any length, several rows of each."""
    rng = np.random.default_rng(8)
    n_rows = n_changed = 0
    for number in range(300):
        asked, expected = list[Asked](), list[list[list[tuple[int, float]]]]()
        n = int(rng.choice([1, 3, 200]))
        for _ in range(int(rng.integers(1, 6))):
            row = rows(number, rng)
            several = np.stack([rng.permutation(row) for _ in range(int(rng.integers(1, 5)))])
            if rng.random() < 0.1:
                several = np.repeat(several, 2, axis=1)[:, ::2]
            kept = KeptTokens(np.sort(rng.choice(40_000, row.size, replace=False)), 40_000) if number % 3 == 0 else None
            ids = np.arange(row.size) if kept is None else kept.ids
            own = replace(
                settings(number, rng),
                logit_bias={int(ids[0]): 2.0, int(ids[-1]): -1.0} if rng.random() < 0.4 else {},
                dry_multiplier=float(rng.choice([0, 0, 3.0])),
                dry_allowed_length=1,
                repeat_penalty=float(rng.choice([1, 1, 1, 1.5])),
                typical_p=float(rng.choice([1, 1, 1, 0.5])),
            )
            sampler = Sampler(own, [1, 2]).over(kept)
            length = int(rng.integers(2, 30))
            texts = [[int(ids[token % ids.size]) for token in rng.integers(0, 3, length)] for _ in several]
            asked.append(Asked(sampler, several, length, texts.__getitem__))
            expected.append([sampler.guess(row, text, n) for row, text in zip(several, texts, strict=True)])
            n_rows += len(several)
            n_changed += len(several) * (own.dry_multiplier > 0)
        assert guess_all(asked, n) == expected, number
    assert n_rows > 1500
    assert n_changed > 300


@pytest.mark.skipif(
    shutil.which("cc") is None or not _DRAW.exists(), reason="needs a C compiler, and the source, which no wheel has"
)
def test_its_test_without_python_is_of_this_version(tmp_path: Path) -> None:
    """Sanitizers, fuzzers and other processors run it."""
    program, sources = tmp_path / "draw", [_DRAW, _CHECKOUT / "tests/engines/kernels/draw_selftest.c"]
    kernels = _CHECKOUT / "edge_spec/engines/onnx/kernels/src"
    subprocess.run(
        ["cc", "-std=c11", "-O1", "-ffp-contract=off", f"-I{kernels}", "-o", program, *sources, "-lm"], check=True
    )
    drawn = subprocess.run([program, "2000"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert re.fullmatch("draw: 1[0-9]{3} of 2000 rows, digest [0-9a-f]{16}\n", drawn)
