"""What can be said of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edge_spec.generation.context import ModelAccess
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.memory import Ledger
from edge_spec.models import ModelFile
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.base import Choice
from edge_spec.speculation.followed_text import FollowedText
from edge_spec.speculation.language_model import NumericsProfile
from edge_spec.speculation.statistics import Statistics

__all__ = ["DescribedModel", "ModelInfo"]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a program may want to show of a loaded model; ``to_json`` has it as plain values.

    Attributes:
        name: from the target's file.
        files: the target's and those of the smaller models that were given, by role.
        architecture, quantisation, n_params, weight_bytes, n_ctx_train: from the header of the target's file.
        engine: what runs the target.
        n_ctx: the most tokens of prompt and reply together.
        n_vocab: number of token ids.
        has_chat_template: whether it can chat.
        speculation: the name of the way it speculates.
        drafter: what drafts now; less than ``speculation`` while memory is scarce.
        lossless: whether the text has the model's own distribution.
        identity: ``bitwise`` or ``rounding``, see ``TextModel.identity``.
        profile: name of the numerics profile.
        sampling: the fields of ``SamplerSettings`` that its file recommends, used where others are not given.
        budget_bytes: what the process may hold; None without a limit.
        held_bytes: what it holds of that, by the ledger.
    """

    name: str
    files: Mapping[str, Path]
    architecture: str
    quantisation: str
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
    budget_bytes: int | None
    held_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        plain = {"files": {role: str(path) for role, path in self.files.items()}, "sampling": dict(self.sampling)}
        return {each.name: getattr(self, each.name) for each in fields(self)} | plain


class DescribedModel:
    """A model that can be asked what it is.

    Args:
        files: of the target and the smaller models, by role; empty for models without files.

    Attributes:
        mode: the name of the way it speculates.
        lossless: whether the text has the model's own distribution.
        ledger: who holds which bytes, and what is left of the memory budget.
    """

    mode: str
    lossless: bool
    ledger: Ledger
    _access: ModelAccess
    _prompts: PromptBuilder

    def __init__(self, files: Mapping[str, ModelFile]) -> None:
        self._files = dict(files)

    def __repr__(self) -> str:
        state = ", closed" if self._access.lock.closed else ""
        name = f"{self._files['target'].name}, " if self._files else ""
        return f"<TextModel {name}{self.profile.name}: n_ctx {self.n_ctx}, speculation {self.mode}{state}>"

    @property
    def _recommended_sampling(self) -> Mapping[str, Any]:
        target = self._files.get("target")
        return target.sampling if target is not None else {}

    @property
    def info(self) -> ModelInfo:
        """What can be said of it now."""
        target = self._files.get("target")
        return ModelInfo(
            name=target.name if target else self.profile.name,
            files={role: file.path for role, file in self._files.items()},
            architecture=target.architecture if target else "",
            quantisation=target.quantisation if target else "",
            n_params=target.n_params if target else 0,
            weight_bytes=target.weight_bytes if target else 0,
            n_ctx_train=target.n_ctx_train if target else 0,
            engine=self.profile.engine,
            n_ctx=self.n_ctx,
            n_vocab=self.n_vocab,
            has_chat_template=self.has_chat_template,
            speculation=self.mode,
            drafter=self.drafter_name,
            lossless=self.lossless,
            identity=self.identity,
            profile=self.profile.name,
            sampling=SamplerSettings.valid(self._recommended_sampling),
            budget_bytes=self.ledger.budget_bytes,
            held_bytes=self.ledger.held_bytes,
        )

    @property
    def n_ctx(self) -> int:
        """The most tokens of prompt and reply together."""
        return self._access.speculator.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return self._access.speculator.model.n_vocab

    @property
    def has_chat_template(self) -> bool:
        """Whether the model knows how conversations are written."""
        return self._prompts.has_chat_template

    @property
    def profile(self) -> NumericsProfile:
        """Everything that rounds; equal profiles, prompts, settings and seeds give equal text."""
        return self._access.speculator.model.profile

    @property
    def identity(self) -> str:
        """``bitwise``: drafts change no bit. ``rounding``: this device computes rows of some widths differently."""
        return self._access.speculator.model.capabilities.identity

    @property
    def drafter_name(self) -> str:
        """What drafts now; ``off`` if nothing does. Without memory it may be less than ``mode`` says."""
        return self._access.speculator.drafter.name

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What ``auto`` chose among in the last reply, and what it knows of each; empty in modes that do not choose."""
        return self._access.speculator.drafter.choices

    def speed_up(self, done: Statistics) -> float | None:
        """How many times as fast a reply of this model was written as without drafts: an estimate, by the time that
        ``auto`` has measured for plain rounds here. None where nothing was drafted, or not by ``auto``."""
        plain = self.choices.get("off")
        if plain is None or not plain.round_s or not done.drafted or not done.decode_s:
            return None
        return done.tokens * plain.round_s / done.decode_s

    @property
    def followed(self) -> Mapping[str, FollowedText]:
        """The models that are open and the texts that they follow, for inspection: ``target``, and the drafter's."""
        return self._access.speculator.followed

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is dropped now because memory is scarce, in order."""
        return self._access.guard.degradations

    @property
    def session_cache_bytes(self) -> int:
        """Memory that the caches of suspended conversations take."""
        return self._access.sessions.cache.n_bytes
