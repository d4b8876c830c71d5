"""Files that draft from another model's hidden rows, and layers of that kind inside a model.

Their architectures are those of llama.cpp: ``eagle3``, ``dflash`` and ``gemma4-assistant``. Layers for several tokens
at once (MTP) are in the model's own file; their tensors are named ``blk.N.nextn.*``. edge-spec runs none of them yet:
it drafts with complete small models, with tables and with hierarchies of these.
"""

from __future__ import annotations

import re

from edge_spec.errors import UnsupportedModel
from edge_spec.models.model_file import ModelFile

__all__ = ["head_of", "n_mtp_layers", "require_a_model"]

_HEADS = {"eagle3": "an EAGLE-3 head", "dflash": "a DFlash drafter"}
_ASSISTANT = "an assistant head"


def head_of(file: ModelFile) -> str:
    """What kind of head a file is, with its article; empty for a model of its own."""
    architecture = file.architecture.lower()
    return _ASSISTANT if architecture.endswith("-assistant") else _HEADS.get(architecture, "")


def n_mtp_layers(file: ModelFile) -> int:
    """How many layers of a model predict tokens beyond the next one."""
    found = (re.match(r"blk\.(\d+)\.nextn\.", tensor.name) for tensor in file.tensors)
    return len({layer[1] for layer in found if layer is not None})


def require_a_model(file: ModelFile) -> None:
    """Refuse a file that reads another model's hidden rows.

    Raises:
        UnsupportedModel: it does.
    """
    head = head_of(file)
    if head:
        raise UnsupportedModel(
            f"{file.path.name} is {head}: it reads another model's hidden rows, which is not supported yet",
            hint="use a small model of the same family as `draft`, or make one with `edge-spec drafter make`",
        )
