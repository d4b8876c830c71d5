"""What the card reports besides acceptance: losses, agreement of llama.cpp with the training code, conversations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path

import numpy as np

from edge_spec.training.acceptance import rows_after
from edge_spec.training.checkpoint import load_model
from edge_spec.training.corpus import clean, read_records, words_of
from edge_spec.training.exported import mean_loss, opened, token_ids
from edge_spec.training.packing import ID, Rows
from edge_spec.training.vocabulary import TextEncoder

__all__ = ["QUESTIONS", "conversations", "differing_texts", "evaluation_texts", "largest_difference", "losses_of"]

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
"""The user's side of the conversations on the card; the family's answers are printed unedited."""


def evaluation_texts(folder: Path) -> list[str]:
    """Return all texts of all JSONL files in a folder, first as they are, then cleaned."""
    texts: list[str] = []
    for path in sorted(folder.glob("*.jsonl*")):
        for record in read_records(path):
            if "turns" in record and record["turns"] and isinstance(record["turns"][0], str):
                texts += record["turns"]
            else:
                texts.append(words_of(record))
    return texts + [clean(text) for text in texts]


def differing_texts(model: Path, vocabulary: Path, texts: Sequence[str]) -> list[str]:
    """Texts whose token ids differ between llama.cpp and the library that the training uses."""
    encoded = TextEncoder(vocabulary).encode(texts)
    pairs = zip(texts, encoded, token_ids(model, texts), strict=True)
    return [text for text, ours, theirs in pairs if ours != theirs]


def largest_difference(weights: Path, model: Path, rows: Rows) -> float:
    """Largest difference of any logit between PyTorch in 32 bits and llama.cpp with a 32-bit cache.

    With an F32 file both do the same arithmetic; with an F16 file llama.cpp rounds what it multiplies to 16 bits.
    """
    import torch

    ours = load_model(weights, "cpu")
    largest = 0.0
    with torch.no_grad(), opened(model, rows.shape[1], kv="f32") as (theirs, _):
        for row in rows:
            ids = row & ID
            expected = ours(torch.from_numpy(ids.astype(np.int64))[None])[0].numpy()
            largest = max(largest, float(np.abs(rows_after(theirs, ids.tolist()) - expected).max()))
    return largest


def losses_of(path: Path, rows: Rows, bytes_per_token: float) -> dict[str, float]:
    """Loss per token in nats, perplexity, and bits per byte of a file on held-out rows."""
    with opened(path, rows.shape[1]) as (model, _):
        loss = mean_loss(model, rows)
    return {"loss": loss, "perplexity": float(np.exp(loss)), "bits_per_byte": loss / log(2) / bytes_per_token}


def conversations(
    family: Path, questions: Iterable[Sequence[str]] = QUESTIONS, *, max_tokens: int
) -> list[list[dict[str, str]]]:
    """Return what the family answers on llama.cpp with seed 1 and default sampler settings, unedited."""
    from edge_spec.loading import load

    found = []
    with load(family, engine="llama", cache_dir=None) as model:
        for question in questions:
            conversation = model.chat(seed=1, max_tokens=max_tokens)
            for words in question:
                conversation.send(words).read()
            messages = conversation.messages
            found.append([{"role": message.role, "content": message.content.strip()} for message in messages])
    return found
