"""Whether one model can draft for another."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import VocabularyMismatch
from edge_spec.models.gguf.header import read_header
from edge_spec.models.model_file import ModelFile
from edge_spec.models.vocabulary import token_texts

__all__ = ["check_pair"]


def check_pair(target: ModelFile, drafter: ModelFile) -> None:
    """Check that every token id means the same text to both models.

    Token types and the tokens that begin and end a text may differ, as they do between a base model and its chat
    version: only the target's are used.

    Raises:
        VocabularyMismatch: the message says where they first differ.
        ModelNotFound, TruncatedModel: a file was changed since it was inspected.
    """
    of_target, of_drafter = target.vocabulary, drafter.vocabulary
    if of_target.tokens_hash == of_drafter.tokens_hash and target.n_vocab == drafter.n_vocab:
        return
    if of_target.kind != of_drafter.kind:
        what = f"their tokenizers are {of_drafter.kind[:32]!r} and {of_target.kind[:32]!r}"
    else:
        what = _difference(target, drafter)
    raise VocabularyMismatch(
        f"{drafter.path.name} cannot draft for {target.path.name}: {what}",
        hint="choose a drafter of the same model family, or run without one",
    )


def _texts(model: ModelFile) -> Sequence[object]:
    if model.graph is not None:
        from edge_spec.models.onnx.inspection import published_texts

        return published_texts(model)
    array = token_texts(read_header(model.path).metadata)
    return array.decode() if array is not None else ()


def _difference(target: ModelFile, drafter: ModelFile) -> str:
    # Decoded only now that there is something to explain.
    texts = [_texts(model) for model in (drafter, target)]
    sizes = f"they have {drafter.n_vocab} and {target.n_vocab} tokens"
    for token, (ours, theirs) in enumerate(zip(*texts, strict=False)):
        if ours != theirs:
            first = f"token {token} is {str(ours)[:32]!r} in one and {str(theirs)[:32]!r} in the other"
            return first if drafter.n_vocab == target.n_vocab else f"{sizes}, and {first}"
    return sizes if drafter.n_vocab != target.n_vocab else "their tokens differ"
