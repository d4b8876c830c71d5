"""The interface that a conversation needs of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Unpack

from edge_spec.generation.options import ReplyKeywords
from edge_spec.generation.prefix_cache import PrefixCache
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.generation.reply import Reply
from edge_spec.generation.worker import Worker
from edge_spec.memory import Ledger
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.base import Choice, Decision
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["ChatModel"]


class ChatModel(Protocol):
    """A model that writes text; see ``TextModel``. Mode, identity and memory are only shown to people.

    Attributes:
        mode: the name of the way it speculates.
        lossless: whether the text has the model's own distribution.
        ledger: who holds which bytes.
        prefix_cache: the texts in the target's cells, and copies of them.
        worker: the thread that computes.
    """

    mode: str
    lossless: bool
    ledger: Ledger
    prefix_cache: PrefixCache
    worker: Worker[Any]

    @property
    def n_ctx(self) -> int:
        """Size of the context in tokens."""

    @property
    def identity(self) -> str:
        """Whether drafts can change bits, see ``TextModel``."""

    @property
    def degradations(self) -> tuple[str, ...]:
        """The reductions that apply now because memory is scarce."""

    @property
    def choices(self) -> Mapping[str, Choice]:
        """The choices of ``auto``, see ``TextModel``."""

    @property
    def decision(self) -> Decision | None:
        """The last decision of ``auto``, see ``TextModel``."""

    @property
    def profile(self) -> NumericsProfile:
        """The numerics profile."""

    @property
    def prompts(self) -> PromptBuilder:
        """Writes prompts in its tokens.

        Raises:
            Closed: the model is closed.
        """

    def sampler_settings(self, **options: Unpack[ReplyKeywords]) -> SamplerSettings:
        """Return settings of a sampler, with a random seed if none is given.

        Raises:
            SettingsError: a value out of its range, or an unknown name.
        """

    def check_options(self, **options: Unpack[ReplyKeywords]) -> None:
        """Raise if a reply cannot have these options.

        Raises:
            SettingsError: a value out of its range, an unknown name, or a grammar that is not valid.
        """

    @property
    def reply(self) -> Callable[..., Reply]:
        """Makes a reply to token ids; see ``TextModel.reply``.

        Raises:
            SettingsError, PromptError, PromptTooLong, Closed: before anything is written.
        """
