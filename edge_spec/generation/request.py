"""What is asked of one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edge_spec.arguments import require_whole
from edge_spec.errors import PromptError
from edge_spec.generation.text_stream import stops_of
from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.dry import Breakers
from edge_spec.sampling.grammar import Grammar

__all__ = ["ReplyRequest", "require_max_tokens"]


def require_max_tokens(value: object) -> None:
    """Refuse a token limit that is not one; None is no limit.

    Raises:
        SettingsError: it is not a whole number from 1.
    """
    if value is not None:
        require_whole("max_tokens", value, 1, 1 << 62)


@dataclass(frozen=True, kw_only=True)
class ReplyRequest:
    """A prompt and how it is to be answered.

    Attributes:
        prompt: token ids.
        settings: of the sampler.
        max_tokens: the most tokens to write; as many as fit the context if None.
        stop: texts that end the reply.
        grammar: which replies are possible.
        breakers: what the DRY sampler does not look beyond, see ``find_breakers``.
        written: tokens of the reply that are there already; it continues after them.
        drawn: what ``Reply.drawn`` said after them.
        opening: what the prompt has written of the reply, such as the mark that opens a thought.

    Raises:
        PromptError: the prompt is empty. SettingsError: the token limit or a stop string is not valid.
    """

    prompt: Sequence[int]
    settings: SamplerSettings
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    breakers: Breakers | None = None
    written: Sequence[int] = ()
    drawn: Mapping[str, float] = field(default_factory=dict)
    opening: str = ""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError("the prompt is empty", hint="give some text to continue")
        require_max_tokens(self.max_tokens)
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "stop", stops_of(self.stop))
