"""Laws of the memory of tokenizers: it is planned, while they are loaded and after."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from made_tokenizers import generated_tokenizer
from vocabulary_files import write_vocabulary

from edge_spec.engines.registry import engine, settings_of
from edge_spec.models import inspect
from edge_spec.models.json_tokenizer import loading_peak_bytes, tokenizer_bytes
from edge_spec.models.onnx.tokens import read_tokens, size_of_tokenizer

pytestmark = pytest.mark.long

TOKENIZER_HELD = """
import gc, json, re, sys
from pathlib import Path
from edge_spec.models.json_tokenizer import JsonTokenizer, loading_peak_bytes, tokenizer_bytes
from edge_spec.memory import usage
from edge_spec.models.onnx.tokens import TokenizerSize

folder, tiny = Path(sys.argv[1]), Path(sys.argv[2])
none = {"bos": -1, "eos": -1, "ends": frozenset()}
size = TokenizerSize(**json.loads(sys.stdin.readline()))
JsonTokenizer(tiny, **none)
gc.collect()
before = usage().resident_bytes
made = JsonTokenizer(folder / "tokenizer.json", **none)
peak = (int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10) - before
made.tokenize("".join(map(chr, range(32, 2000))) * 4, add_special=False)
held = usage().resident_bytes - before
print(held, tokenizer_bytes(size), peak, loading_peak_bytes(size))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only here the system tells the peak")
@pytest.mark.parametrize(
    ("kind", "n_tokens"), [("pairs", 24_000), ("pairs", 100_000), ("texts", 60_000), ("unigram", 12_000)]
)
def test_a_tokenizer_takes_what_is_planned_while_it_is_loaded_and_after(
    tmp_path: Path, kind: str, n_tokens: int
) -> None:
    generated_tokenizer(tmp_path / kind, kind, n_tokens)
    generated_tokenizer(tmp_path / "tiny", "texts", 300)
    tokens, model = read_tokens(tmp_path / kind)
    size = size_of_tokenizer(tmp_path / kind, tokens, model)
    assert size.n_tokens == n_tokens
    done = subprocess.run(
        [sys.executable, "-c", TOKENIZER_HELD, tmp_path / kind, tmp_path / "tiny" / "tokenizer.json"],
        input=json.dumps(vars(size)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    held, planned, peak, planned_peak = map(int, done.stdout.split())
    for measured, expected in ((held, planned), (peak, planned_peak)):
        assert abs(measured - expected) < max(0.2 * expected, 4 << 20), done.stdout


def test_a_tokenizer_is_planned_by_its_own_formula_and_loaded_before_the_weights(made: dict[str, Path]) -> None:
    file = inspect(made["genai"])
    assert file.graph is not None and file.graph.tokenizer is not None
    size = file.graph.tokenizer
    assert size.n_merges == file.n_merges > 0
    with engine("onnx").estimator() as estimates:
        found = estimates.footprint(file, settings_of(128, {}), tokenizer=True)
    assert found.vocabulary_bytes == tokenizer_bytes(size)
    assert found.loading_peak_bytes >= loading_peak_bytes(size) >= tokenizer_bytes(size)


GGUF_HELD = """
import gc, re, sys
from pathlib import Path
from edge_spec.memory import usage
from edge_spec.models.gguf.header import read_header
from edge_spec.models.gguf_tokenizer.memory import loading_peak_bytes, tokenizer_bytes
from edge_spec.models.gguf_tokenizer.tokenizer import GGUFTokenizer

counts = int(sys.argv[2]), int(sys.argv[3])
header = read_header(Path(sys.argv[1]))
gc.collect()
before = usage().resident_bytes
made = GGUFTokenizer(header)
peak = (int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10) - before
made.tokenize("".join(map(chr, range(32, 2000))) * 4, add_special=False)
held = usage().resident_bytes - before
print(held, tokenizer_bytes(*counts), peak, loading_peak_bytes(*counts))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only here the system tells the peak")
@pytest.mark.parametrize(("n_tokens", "n_merges"), [(49_000, 48_000), (152_000, 151_000), (262_000, 0)])
def test_the_tokenizer_of_a_gguf_takes_what_is_planned(tmp_path: Path, n_tokens: int, n_merges: int) -> None:
    rng = random.Random(n_tokens)
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [f"{''.join(rng.choices(letters, k=rng.randrange(1, 6)))}.{n:x}" for n in range(n_tokens)]
    merges = [f"{token[:2]} {token[2:]}" for token in tokens[:n_merges]] or None
    kind = "gpt2" if merges else "llama"
    path = write_vocabulary(tmp_path / "vocabulary.gguf", kind, tokens, merges=merges, facts={"pre": "qwen2"})
    done = subprocess.run(
        [sys.executable, "-c", GGUF_HELD, path, str(n_tokens), str(n_merges)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    held, planned, peak, planned_peak = map(int, done.stdout.split())
    for measured, expected in ((held, planned), (peak, planned_peak)):
        assert abs(measured - expected) < max(0.12 * expected, 4 << 20), done.stdout
