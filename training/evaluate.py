"""What the card reports: losses of the files, agreement with the training code, acceptance, conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from edge_spec.training.acceptance import agreement, prompts_of, write
from edge_spec.training.checkpoint import load_model
from edge_spec.training.corpus import clean, read_records, words_of
from edge_spec.training.packing import ID, Rows
from edge_spec.training.through_llama import opened, token_ids
from edge_spec.training.vocabulary import Speller

__all__ = [
    "QUESTIONS",
    "acceptance_of",
    "conversations",
    "differing_texts",
    "evaluation_texts",
    "largest_difference",
    "losses_of",
]

QUESTIONS = (
    ("Hello, how are you today?", "What do you like to do for fun?", "That is nice. Goodbye!"),
    ("Tell me a short story about a dog.",),
    ("Tell me a bedtime story.",),
    ("I would like to book a table for two people tonight.", "At seven, please."),
    ('What does "lantern" mean?',),
    ("What is photosynthesis?",),
    ("Tom has 3 apples and buys 4 more. How many apples does he have?",),
    ("How do I use the command ls?",),
)
"""What is said to the family for the card; its answers are shown as they come."""


def evaluation_texts(folder: Path) -> list[str]:
    """Every text of every JSONL file in a folder, as it is and cleaned."""
    texts: list[str] = []
    for path in sorted(folder.glob("*.jsonl*")):
        for record in read_records(path):
            if "turns" in record and record["turns"] and isinstance(record["turns"][0], str):
                texts += record["turns"]
            else:
                texts.append(words_of(record))
    return texts + [clean(text) for text in texts]


def differing_texts(model: Path, vocabulary: Path, texts: Sequence[str]) -> list[str]:
    """Texts whose token ids differ between llama.cpp and the library that trained on them."""
    spelled = Speller(vocabulary).spell(texts)
    pairs = zip(texts, spelled, token_ids(model, texts), strict=True)
    return [text for text, ours, theirs in pairs if ours != theirs]


def largest_difference(weights: Path, model: Path, rows: Rows) -> float:
    """Largest difference of any logit between PyTorch in 32 bits and llama.cpp, which gets a 32-bit cache.

    With an F32 file both do the same arithmetic; with an F16 file llama.cpp rounds what it multiplies to 16 bits.
    """
    import torch

    ours = load_model(weights, "cpu")
    largest = 0.0
    with torch.no_grad(), opened(model, rows.shape[1], kv="f32") as reader:
        for row in rows:
            ids = row & ID
            expected = ours(torch.from_numpy(ids.astype(np.int64))[None])[0].numpy()
            largest = max(largest, float(np.abs(reader.logits(ids.tolist()) - expected).max()))
    return largest


def losses_of(model: Path, rows: Rows, bytes_per_token: float) -> dict[str, float]:
    """Loss per token in nats, perplexity, and bits per byte of a file on held-out rows."""
    with opened(model, rows.shape[1]) as reader:
        loss = reader.mean_loss(rows)
    return {"loss": loss, "perplexity": float(np.exp(loss)), "bits_per_byte": loss / log(2) / bytes_per_token}


def acceptance_of(
    target: Path, others: dict[str, Path], evaluation: Path, *, most: int, n_ctx: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """For each smaller model its share of the target's tokens, on greedy text and at temperature 0.8."""
    prompts = prompts_of(evaluation, most)
    found: dict[str, dict[str, Any]] = {name: {} for name in others}
    with opened(target, n_ctx) as reader:
        texts = {temperature: write(reader, prompts, temperature) for temperature in (0.0, 0.8)}
    for name, path in others.items():
        with opened(path, n_ctx) as reader:
            for temperature, those in texts.items():
                kind = "greedy" if temperature == 0 else f"temperature {temperature:g}"
                found[name][kind] = agreement(reader, those, temperature)
                say(f"acceptance: {name}, {kind}: {found[name][kind]['share']:.3f}")
    return found


def conversations(
    family: Path, questions: Iterable[Sequence[str]] = QUESTIONS, *, max_tokens: int
) -> list[list[dict[str, str]]]:
    """What the family says with seed 1 and the package's own sampler settings on llama.cpp, unedited."""
    from edge_spec.loading import load

    talks = []
    with load(family, engine="llama", cache_dir=None) as model:
        for question in questions:
            talk = model.chat(seed=1, max_tokens=max_tokens)
            for words in question:
                talk.send(words).read()
            talks.append([{"role": message.role, "content": message.content.strip()} for message in talk.messages])
    return talks
