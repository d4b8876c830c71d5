"""Read the trimmed vocabulary of a GGUF.

A drafter may know only the tokens that its target writes most. Its file lists them, and whose they are::

    edge_spec.target_tokens       uint32 [n]   the target's id of each of its tokens but the last, ascending
    edge_spec.target_vocabulary   string       hash of the texts of the target's tokens (``tokens_hash``)
    edge_spec.target_fingerprint  string       the target that taught it

Its last token stands for all others of the target: the file has ``n + 1`` rows of embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_spec.models.gguf.header import GGUFArray, Value

__all__ = ["TARGET_FINGERPRINT", "TARGET_TOKENS", "TARGET_VOCABULARY", "TrimmedVocabulary", "trimmed_of"]

TARGET_TOKENS = "edge_spec.target_tokens"
TARGET_VOCABULARY = "edge_spec.target_vocabulary"
TARGET_FINGERPRINT = "edge_spec.target_fingerprint"
_TARGET_LAYERS = "eagle3.target_layers"


@dataclass(frozen=True)
class TrimmedVocabulary:
    """A vocabulary that is a part of another one.

    Attributes:
        of: hash of the texts of the whole vocabulary's tokens.
        teacher: fingerprint of the model that taught it; empty if the file does not say.
        ids: in the whole vocabulary, of its tokens but the last; they stay in the file.
        target_layers: of a head the layers of its target that it reads; None for a model of its own.
    """

    of: str
    teacher: str
    ids: GGUFArray = field(repr=False)
    target_layers: GGUFArray | None = field(default=None, repr=False)


def trimmed_of(metadata: Mapping[str, Value]) -> TrimmedVocabulary | None:
    """Return the trimmed vocabulary of a file; None if it has a whole one."""
    ids, of, teacher = (metadata.get(key) for key in (TARGET_TOKENS, TARGET_VOCABULARY, TARGET_FINGERPRINT))
    if not isinstance(ids, GGUFArray):
        return None
    layers = metadata.get(_TARGET_LAYERS)
    return TrimmedVocabulary(
        str(of), teacher if isinstance(teacher, str) else "", ids, layers if isinstance(layers, GGUFArray) else None
    )
