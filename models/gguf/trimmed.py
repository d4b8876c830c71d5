"""The trimmed vocabulary of a drafter, and the model that it was made for, as its GGUF tells them.

A drafter may know only the tokens that its target writes most. Its file lists them, and whose they are::

    edge_spec.target_tokens            uint32 [n]   the target's id of each of its tokens but the last, ascending
    edge_spec.target_vocabulary        string       hash of the texts of the target's tokens (``tokens_hash``)
    edge_spec.target_fingerprint       string       the file that taught it
    edge_spec.target_architecture      string       these three are the same in every file of that model
    edge_spec.target_block_count       uint32
    edge_spec.target_embedding_length  uint32

Its last token stands for all others of the target: the file has ``n + 1`` rows of embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_spec.models.gguf.header import GGUFArray, Value

__all__ = [
    "TARGET_ARCHITECTURE",
    "TARGET_BLOCK_COUNT",
    "TARGET_EMBEDDING_LENGTH",
    "TARGET_FINGERPRINT",
    "TARGET_TOKENS",
    "TARGET_VOCABULARY",
    "TargetShape",
    "TrimmedVocabulary",
    "trimmed_of",
]

TARGET_TOKENS = "edge_spec.target_tokens"
TARGET_VOCABULARY = "edge_spec.target_vocabulary"
TARGET_FINGERPRINT = "edge_spec.target_fingerprint"
TARGET_ARCHITECTURE = "edge_spec.target_architecture"
TARGET_BLOCK_COUNT = "edge_spec.target_block_count"
TARGET_EMBEDDING_LENGTH = "edge_spec.target_embedding_length"
_MOST_LETTERS = 64


@dataclass(frozen=True, kw_only=True)
class TargetShape:
    """The identity of a model, which all its files share however they are quantized."""

    architecture: str
    n_layers: int
    width: int

    def __str__(self) -> str:
        return f"{self.architecture} with {self.n_layers} layers of width {self.width}"


@dataclass(frozen=True)
class TrimmedVocabulary:
    """A vocabulary that is a part of another one.

    Attributes:
        of: hash of the texts of the whole vocabulary's tokens.
        teacher: fingerprint of the file that taught it; empty if the file does not say.
        ids: in the whole vocabulary, of its tokens but the last; they stay in the file.
        target: the model that it was made for; None if the file does not say.
    """

    of: str
    teacher: str
    ids: GGUFArray = field(repr=False)
    target: TargetShape | None = None


def trimmed_of(metadata: Mapping[str, Value]) -> TrimmedVocabulary | None:
    """Return the trimmed vocabulary of a file; None if it has a whole one."""
    ids, of, teacher = (metadata.get(key) for key in (TARGET_TOKENS, TARGET_VOCABULARY, TARGET_FINGERPRINT))
    if not isinstance(ids, GGUFArray):
        return None
    return TrimmedVocabulary(str(of), teacher if isinstance(teacher, str) else "", ids, _target(metadata))


def _target(metadata: Mapping[str, Value]) -> TargetShape | None:
    keys = (TARGET_ARCHITECTURE, TARGET_BLOCK_COUNT, TARGET_EMBEDDING_LENGTH)
    architecture, n_layers, width = map(metadata.get, keys)
    if not isinstance(architecture, str) or type(n_layers) is not int or type(width) is not int:
        return None
    # Errors show it in one line; models of such an architecture are refused.
    is_shown = len(architecture) <= _MOST_LETTERS and architecture.isprintable()
    return TargetShape(architecture=architecture, n_layers=n_layers, width=width) if is_shown else None
