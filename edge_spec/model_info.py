"""The description of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["ModelInfo"]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A description of a loaded model to show to people; ``to_json`` returns plain values.

    Attributes:
        name: what people call it: as ``load`` was asked for it, a path by the name of its file.
        title: what the target's file calls it.
        files: the target's and those of the smaller models that were given, by role.
        architecture, quantization, n_params, weight_bytes, n_ctx_train: from the header of the target's file.
        engine: what runs the target.
        n_ctx: the most tokens of prompt and reply together.
        n_vocab: number of token ids.
        has_chat_template: whether it can chat.
        speculation: the name of the way it speculates.
        drafter: what drafts now; less than ``speculation`` while memory is scarce.
        lossless: whether the text has the model's own distribution.
        identity: ``bitwise`` or ``rounding``, see ``TextModel.identity``.
        profile: name of the numerics profile.
        sampling: the fields of ``SamplerSettings`` that are recommended for its file, used where others are not given.
        sampling_by: who recommends them: ``file``, ``edge-spec``, or empty if there are none.
        budget_bytes: what the process may hold; None without a limit.
        held_bytes: what it holds of that, by the ledger.
    """

    name: str
    title: str
    files: Mapping[str, Path]
    architecture: str
    quantization: str
    n_params: int
    weight_bytes: int
    n_ctx_train: int
    engine: str
    n_ctx: int
    n_vocab: int
    has_chat_template: bool
    speculation: str
    drafter: str
    lossless: bool
    identity: str
    profile: str
    sampling: Mapping[str, Any]
    sampling_by: str
    budget_bytes: int | None
    held_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        plain = {"files": {role: str(path) for role, path in self.files.items()}, "sampling": dict(self.sampling)}
        return {each.name: getattr(self, each.name) for each in fields(self)} | plain
