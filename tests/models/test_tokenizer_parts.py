"""Laws of what a tokenizer.json does to texts: published kinds are let through, and what has no bound is refused."""

from __future__ import annotations

import base64
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_spec.errors import PromptError, UnsupportedModel
from edge_spec.models.json_tokenizer import JsonTokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BPE = {
    "type": "BPE",
    "vocab": {text: n for n, text in enumerate([*BYTES, "a", "x", "▁", "<s>"])},
    "merges": [],
    "byte_fallback": True,
}

PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|\s+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"(?<=\d)(?=\d)",
    r" {2,}",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+",
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT])?|\p{N}|\s+(?!\S)|\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"\s+$",
]
ENDLESS = [r"(a+)+$", r"(\w+\s?)+$", "(a|aa)+$", "(a|a)*b", "((a+)b?)*", "(?:a*)*", "(?:a?){50}", "(?=(a+)+b)", ""]
ENDLESS += [r"\w*\w*!", r"(\w*)(\w*)!", r"\w*\w*\w*", r"\w*(?=\w*!)", r"\w*(?!\w+$)", r"(a*)?b*(?:c|$)", r"(\w+!)?\w*!"]
ENDLESS += [
    "(?:a?a)*b",
    "(?:a{1,9999})*",
    "(?:a{1,9999}){20}",
    "a?" * 12 + "b",
    "a{0,9}" * 6 + "b",
    "(a|b)" * 11,
    "(?~a)*",
]


def charsmap(unit: int = 353 << 10 | 1 << 8 | ord("a"), text: bytes = b"x\0", leaf: int = 0) -> dict[str, Any]:
    """Return a ``Precompiled`` that writes x for a, or is damaged."""
    units = np.zeros(512, "<u4")
    units[ord("a")], units[256] = unit, 1 << 31 | leaf
    raw = (units.nbytes).to_bytes(4, "little") + units.tobytes() + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(*pieces: dict[str, Any], ids: int = 1, tokens: int | None = None) -> dict[str, Any]:
    special = {"id": "<s>", "ids": [259] * ids, "tokens": ["<s>"] * (ids if tokens is None else tokens)}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {"<s>": special}}


def several(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


BEGIN, TEXT = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}

SOUND = [
    *({"pre_tokenizer": split(pattern)} for pattern in PUBLISHED),
    {"normalizer": several("normalizers", {"type": "Prepend", "prepend": "▁"}, replace("▁", String=" "))},
    {"normalizer": several("normalizers", *[{"type": "NFKC"}] * 3, replace(" ", Regex=" {2,}"), {"type": "NFC"})},
    {"normalizer": several("normalizers", *[{"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}])},
    {"post_processor": template(BEGIN, TEXT)},
    {"normalizer": charsmap()},
]
HOSTILE = [
    *({"pre_tokenizer": split(pattern)} for pattern in ENDLESS),
    {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    {"pre_tokenizer": several("pretokenizers", *[{"type": "Whitespace"}] * 100)},
    {"normalizer": replace("ab", String="")},
    {"normalizer": several("normalizers", *[replace("l" * 10, String="l")] * 4)},
    {"normalizer": several("normalizers", *[replace("ab", Regex="a*")] * 30)},
    {"normalizer": several("normalizers", *[replace("a", Regex="")] * 30)},
    {"normalizer": {"type": "Prepend", "prepend": "x" * 1000}},
    {"normalizer": several("normalizers", *[{"type": "NFKD"}] * 1000)},
    {"normalizer": charsmap(unit=(1 << 21) - 1 << 10 | 1 << 8 | ord("a"))},
    {"normalizer": charsmap(leaf=1000)},
    {"normalizer": charsmap(text="é\0".encode(), leaf=1)},
    {"normalizer": charsmap(text=b"x" * 1000)},
    {"post_processor": template({"SpecialToken": {"id": "<s>", "type_id": 0}}, *[TEXT] * 30)},
    {"post_processor": template(BEGIN, TEXT, ids=1000)},
    {"post_processor": several("processors", *[{"type": "ByteLevel", "trim_offsets": True}] * 100)},
    {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "q"}},
    {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}},
]


def opened(folder: Path, changes: dict[str, Any]) -> JsonTokenizer:
    path = folder / "tokenizer.json"
    values = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": BPE, **changes}
    path.write_text(json.dumps(values), "utf-8")
    return JsonTokenizer(path, bos=-1, eos=-1, ends=frozenset())


@pytest.mark.parametrize("changes", SOUND, ids=range(len(SOUND)))
def test_what_published_tokenizers_do_is_let_through(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, changes)
    assert tokenizer.tokenize("a  b", add_special=True)
    if changes.get("normalizer", {}).get("type") == "Precompiled":
        assert tokenizer.tokenize("a", add_special=False) == [257]


def test_other_threads_go_on_while_a_long_text_is_read(tmp_path: Path) -> None:
    # Of a published tokenizer: at each place of a run of digits it looks to the end of the run.
    tokenizer = opened(tmp_path, {"pre_tokenizer": split(r"\d{1,3}(?=(?:\d{3})*\b)")})
    read: list[list[int]] = []
    reader = threading.Thread(target=lambda: read.append(tokenizer.tokenize("1" * 9000, add_special=False)))
    reader.start()
    n_steps = 0
    while reader.is_alive():
        time.sleep(0.001)
        n_steps += 1
    assert len(read[0]) == 9000
    assert n_steps > 20


@pytest.mark.parametrize("piece", ["1", "\u00b2", " ", " \n"])
def test_runs_of_which_a_pattern_takes_the_square_have_a_limit(piece: str, tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, {"pre_tokenizer": split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\s+$")})
    n = 16_384 // len(piece)
    # What others take for a word, or of other letters, has no limit.
    for text in (piece * 200 + "a", (piece * 200 + "a") * 100, "a" * 40_000, "a1" * 20_000, "-" * 40_000):
        assert tokenizer.tokenize(text, add_special=False)
    for text in (piece * (n + 1), "a" + piece * (n + 1) + "a", (piece * (n // 2) + "a") * 5):
        with pytest.raises(PromptError, match=r"spaces in a row, like 1[68],\d{3} at once, and 16,384 are read; put"):
            tokenizer.tokenize(text, add_special=False)
    assert opened(tmp_path, {}).tokenize(piece * (n + 1), add_special=False)


def test_short_and_long_texts_are_read_alike(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, {"post_processor": template(BEGIN, TEXT)})
    for n in (2047, 2048, 5000):
        assert tokenizer.tokenize("a" * n, add_special=True) == [259] + [256] * n


@pytest.mark.parametrize("changes", HOSTILE, ids=range(len(HOSTILE)))
def test_what_has_no_bound_or_contradicts_itself_is_refused(
    changes: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be used: ") as refused:
        opened(tmp_path, changes)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_what_the_library_cannot_tokenize_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    class Failing:
        def encode(self, text: str, *, add_special_tokens: bool) -> None:
            raise Panic("no entry found\nfor key")

    tokenizer = opened(tmp_path, {})
    tokenizer._library = Failing()
    with pytest.raises(PromptError, match=r"tokenizer\.json cannot turn this text into tokens: no entry found$"):
        tokenizer.tokenize("a", add_special=True)
