"""GGUFs that hold nothing but a vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drawn_texts import drawn_text
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from edge_spec.tokens.byte_letters import BYTE_LETTERS

SPECIAL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|think|>",
    "<tool>",
    "\n\n\n",
    "<|im_start|>user",
    "ab<s>",
)
"""Control tokens and, from the sixth on, tokens that are listed as text."""

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_vocabulary(
    path: Path,
    kind: str,
    tokens: Sequence[str | bytes],
    *,
    types: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
    merges: Sequence[str | bytes] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write a vocabulary.

    Args:
        facts: further metadata; ``tokenizer.ggml.`` is put before names without a dot.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    if types is not None:
        writer.add_token_types(types)
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    for name, value in (facts or {}).items():
        key = name if "." in name else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def learned_pairs(n_tokens: int, *, byte_level: bool) -> tuple[list[str], list[str]]:
    """Return tokens and merges learned from drawn texts that were cut nowhere, so that every cut shows in the ids."""
    draw = random.Random(n_tokens)
    # llama.cpp takes tokens to end at zero bytes.
    texts = [drawn_text(draw, ()).replace("\0", "") for _ in range(3000)]
    learner = Tokenizer(models.BPE())
    if byte_level:
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        texts = [text.replace(" ", "\u2581") for text in texts]
    alphabet = list(BYTE_LETTERS.values()) if byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens, initial_alphabet=alphabet, limit_alphabet=600, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    content = json.loads(learner.model.__getstate__())
    return list(content["vocab"]), [merge if isinstance(merge, str) else " ".join(merge) for merge in content["merges"]]


def write_byte_level(path: Path, pre: str, **facts: Any) -> Path:
    """Write a vocabulary of letters that stand for bytes."""
    texts, merges = learned_pairs(3000, byte_level=True)
    tokens = [*SPECIAL, *(text for text in texts if text not in SPECIAL)]
    types = [*[TokenType.CONTROL] * 5, *[TokenType.USER_DEFINED] * (len(SPECIAL) - 5)]
    types += [TokenType.NORMAL] * (len(tokens) - len(types))
    facts = {"bos_token_id": 0, "eos_token_id": 1, "pre": pre, **facts}
    return write_vocabulary(path, "gpt2", tokens, types=types, merges=merges, facts=facts)


def write_plain(path: Path, kind: str, **facts: Any) -> Path:
    """Write a vocabulary of texts and single bytes: ``llama``, with scores, or ``gemma4``, with merges."""
    texts, merges = learned_pairs(2500, byte_level=False)
    # Some characters are left to their bytes.
    special = ("<unk>", *SPECIAL)
    known = [text for n, text in enumerate(texts) if n % 9 or len(text) > 1]
    tokens = [*special, *BYTES, *(text for text in known if text not in special and text not in BYTES)]
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 5, *[TokenType.USER_DEFINED] * (len(SPECIAL) - 5)]
    types += [*[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (len(tokens) - len(types) - 256)]
    facts = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **facts}
    if kind != "llama":
        return write_vocabulary(path, kind, tokens, types=types, merges=merges, facts=facts)
    # Many scores are equal, so that the order of equal ones shows.
    scores = [-float(n // 50) for n in range(len(tokens))]
    return write_vocabulary(path, kind, tokens, types=types, scores=scores, facts=facts)
