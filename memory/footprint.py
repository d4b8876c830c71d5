"""What one model holds, line by line, while it is loaded and while it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Footprint"]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model on one engine.

    Attributes:
        mapped_bytes: weights that stay mapped from their file. Decoding touches them for every token, so they count
            like memory of our own, although the system could drop them.
        repacked_bytes: weights copied into a layout that computes faster.
        copied_bytes: other weights in memory of our own.
        vocabulary_bytes: the tokeniser's tables.
        kv_cache_bytes: keys and values, for the whole context.
        compute_bytes: what the engine computes in, for a whole prefill chunk at the end of a full context.
        logits_bytes: rows of logits.
        reading_bytes: needed while a chunk of a prompt is read and given back after it; models read by turns.
        loading_bytes: needed while weights are loaded and given back then.
    """

    mapped_bytes: int = 0
    repacked_bytes: int = 0
    copied_bytes: int = 0
    vocabulary_bytes: int = 0
    kv_cache_bytes: int = 0
    compute_bytes: int = 0
    logits_bytes: int = 0
    reading_bytes: int = 0
    loading_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}")

    @property
    def weight_bytes(self) -> int:
        """All weights, wherever they lie."""
        return self.mapped_bytes + self.repacked_bytes + self.copied_bytes

    @property
    def held_bytes(self) -> int:
        """What the model holds while it runs."""
        return sum(self.lines().values())

    @property
    def loading_peak_bytes(self) -> int:
        """The most it holds before it has a context."""
        return self.weight_bytes + self.vocabulary_bytes + self.loading_bytes

    def lines(self) -> dict[str, int]:
        """What is held, by name, without what is nothing."""
        named = {
            "weights, mapped": self.mapped_bytes,
            "weights, repacked": self.repacked_bytes,
            "weights, copied": self.copied_bytes,
            "vocabulary": self.vocabulary_bytes,
            "KV cache": self.kv_cache_bytes,
            "compute buffers": self.compute_bytes,
            "logits rows": self.logits_bytes,
        }
        return {name: n_bytes for name, n_bytes in named.items() if n_bytes}
