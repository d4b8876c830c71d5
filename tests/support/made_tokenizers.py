"""Files of tokenizers as exporters write them: with byte fallback, and with words of random letters."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_spec.models.json_tokenizer import JsonTokenizer


def special_token(token: int, text: str) -> dict[str, Any]:
    """A control token, as ``tokenizer.json`` lists them."""
    ways = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **ways, "special": True}


def byte_pairs(texts: Sequence[str], merges: Sequence[str]) -> dict[str, Any]:
    """The model of a tokenizer that merges pairs."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {text: token for token, text in enumerate(texts)},
        "merges": list(merges),
    }


def byte_fallback(folder: Path, decoder: list[dict[str, Any]]) -> JsonTokenizer:
    """Writes a tokenizer as those that come from SentencePiece, and opens it."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdehlorwt,.", "▁a", "▁b", "he"]
    content = {
        "version": "1.0",
        "truncation": {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
        "padding": None,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoder},
        "added_tokens": [special_token(token, texts[token]) for token in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": byte_pairs(texts, ["▁ a", "▁ b", "h e"])
        | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), "utf-8")
    return JsonTokenizer(path, bos=1, eos=2, ends=frozenset({2}))


SENTENCE_PIECE: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


def generated_tokenizer(folder: Path, kind: str, n_tokens: int) -> None:
    """Words of random letters for bytes, each joined of two that came before."""
    rng = random.Random(n_tokens)
    words = [chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    known, merges = set(words), []
    while len(words) < n_tokens:
        pair = [words[rng.randrange(len(words))], words[rng.randrange(min(len(words), 2000))]]
        word = "".join(pair)
        if word not in known and len(word) <= 16:
            known.add(word)
            words.append(word)
            merges.append(pair)
    model: dict[str, Any] = {"type": "BPE", "vocab": {word: n for n, word in enumerate(words)}}
    model["merges"] = merges if kind == "pairs" else list(map(" ".join, merges))
    if kind == "unigram":
        model = {"type": "Unigram", "unk_id": 0, "vocab": [[word, -n / 1000] for n, word in enumerate(words)]}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    splitter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": splitter, "decoder": decoder, "model": model}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
