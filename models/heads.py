"""Files that draft from another model's hidden states, and layers of that kind inside a model.

Their architectures are those of llama.cpp: ``eagle3``, ``dflash`` and ``gemma4-assistant``. Layers for further tokens
(MTP) are in the model's own file or beside it, see ``mtp.py``. Of all these edge-spec runs MTP layers and EAGLE-3
heads: those that are published, and those that ``edge-spec drafter make`` makes, which list the target's tokens that
they know.
"""

from __future__ import annotations

from edge_spec.errors import Sentence, UnsupportedModel
from edge_spec.models.head_facts import EAGLE3
from edge_spec.models.made_for import why_not_for, why_not_read
from edge_spec.models.model_file import ModelFile
from edge_spec.models.mtp import n_own_layers

__all__ = [
    "EAGLE3",
    "head_layers",
    "head_of",
    "is_head",
    "lacking_rows",
    "reads",
    "require_a_model",
]

_HEADS = {EAGLE3: "an EAGLE-3 head", "dflash": "a DFlash drafter"}
_ASSISTANT, _MTP = "an assistant head", "an MTP layer"


def head_of(file: ModelFile) -> str:
    """Return the kind of head of a file, with its article; empty for a model of its own."""
    if file.head is not None and file.head.is_mtp:
        return _MTP
    architecture = file.architecture.lower()
    return _ASSISTANT if architecture.endswith("-assistant") else _HEADS.get(architecture, "")


def is_head(file: ModelFile) -> bool:
    """Return whether a file is a head that edge-spec runs."""
    return file.head is not None


def reads(file: ModelFile, model: ModelFile) -> bool:
    """Return whether a file is a head on the hidden states of a model."""
    return is_head(file) and why_not_for(file, model) is None


def head_layers(file: ModelFile, target: ModelFile) -> tuple[int, ...]:
    """Return numbers of the layers of its target whose input a head reads, from 1 on.

    The number of all layers stands for what goes out of the last one.

    Args:
        file: of a head that edge-spec runs.

    Raises:
        UnsupportedModel: it was made for another model, or names layers that this one does not have.
    """
    why = why_not_for(file, target) or why_not_read(file, target)
    if why is None and file.head is not None:
        return file.head.layers_of(n_own_layers(target))
    raise UnsupportedModel(
        f"{file.path.name} {why}",
        hint="choose a drafter that was made for this model (`edge-spec drafter make`), or run without one",
    )


def lacking_rows(target: ModelFile) -> str:
    """Return why a head cannot draft for a target whose engine does not give hidden states; the head is the subject."""
    return f"reads hidden states, which {target.path.name} does not provide as it is run here"


def require_a_model(file: ModelFile) -> None:
    """Raise if a file reads another model's hidden states in a way that edge-spec does not support.

    Raises:
        UnsupportedModel: it is such a file.
    """
    head = head_of(file)
    if head and not is_head(file):
        raise UnsupportedModel(
            f"{file.path.name} is {head}: it reads another model's hidden states, which is not supported yet",
            hint=Sentence("use a small model of the same family as {draft}, or make one with `edge-spec drafter make`"),
        )
