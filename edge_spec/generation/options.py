"""What a reply can be asked for: as keyword arguments, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import Annotated, Any

from edge_spec.errors import SettingsError
from edge_spec.generation.text_stream import stops_of
from edge_spec.generation.thinking import Think, think_of
from edge_spec.generation.tools.functions import callable_functions
from edge_spec.options import (
    Option,
    has_kind,
    is_finite,
    options_of,
    own_number,
    python_option,
    refuse_unknown,
    require_in_range,
    written,
)
from edge_spec.sampling import SAMPLER_OPTIONS, SamplerKeywords, SamplerSettings

__all__ = ["ANSWER_OPTIONS", "REPLY_OPTIONS", "AnswerKeywords", "ReplyKeywords", "ReplyOptions", "ignore"]


def ignore(*event: object) -> None:
    """Do nothing: the default of callbacks."""


class AnswerKeywords(SamplerKeywords, total=False):
    """What an answer in a conversation can be asked for, and any other reply."""

    max_tokens: Annotated[
        int | None, Option("Maximum tokens to write.", shown="what fits the context", at_least=1, short="-n")
    ]
    stop: Annotated[str | Sequence[str] | None, Option("Texts that end the reply where they would appear.")]
    ignore_eos: Annotated[bool, Option("Never let the model end the reply itself.")]
    seed: Annotated[int | None, Option("Random seed. The reply's `settings` tell it.", shown="random")]
    grammar: Annotated[
        str | None,
        Option("Write only what this grammar in GBNF allows. Its rule `root` is the whole answer, after its thought."),
    ]
    json_schema: Annotated[
        str | Mapping[str, Any] | None, Option("Write JSON that is valid by this schema.", field=None)
    ]
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        python_option(
            'Functions that the model may call, in OpenAI\'s form: `{"type": "function", "function": {...}}` each. The '
            "reply's `tool_calls` are what it calls."
        ),
    ]
    tool_choice: Annotated[
        str,
        python_option(
            "`auto`: the model calls if it likes; `required`: it has to; `none`: it is shown no tools; or the name of "
            "the function to call."
        ),
    ]
    parallel_tool_calls: Annotated[bool, python_option("Whether it may call several in one reply.")]
    think: Annotated[
        bool | str | None,
        Option(
            "Let the model think first, or not: on, off, or a level such as low. What can be told depends on its chat "
            "template.",
            shown="what the chat template does",
            field=None,
        ),
    ]
    timeout: Annotated[
        float | None,
        python_option(
            "Seconds after which the reply ends with `finish_reason` `timeout`, from when it is first asked for a "
            "piece; waiting for its turn counts. It is looked at between rounds, and while a prompt is read."
        ),
    ]


class ReplyKeywords(AnswerKeywords, total=False):
    """What a reply can be asked for."""

    raw: Annotated[bool, Option("Continue the text as it is, without the model's chat template.", field=None)]
    logprobs: Annotated[
        int | None,
        Option(
            "Let `Reply.events` tell how likely each token was, and so many of the likeliest ones.",
            at_least=0,
            at_most=1000,
            flag=None,
        ),
    ]
    reuse: Annotated[
        bool,
        python_option(
            "Do not read again what the prompt has in common with earlier ones that were asked so, or with the replies "
            "to them. The text is the same."
        ),
    ]
    attempt: Annotated[int, python_option("Which retry of the same prompt and seed it is: another draw.")]
    on_notice: Annotated[
        Callable[[str], object],
        python_option(
            "Called with each sentence that the reader should see, such as that memory is scarce and what changes; "
            "they are in `notices` as well."
        ),
    ]
    on_progress: Annotated[
        Callable[[str, int, int], object],
        python_option("Called with `reading`, how many tokens of the prompt have been read, and how many have to be."),
    ]


@dataclass(frozen=True, kw_only=True)
class ReplyOptions:
    """What a reply is asked for, checked as far as that needs no model.

    Attributes:
        sampling: values of ``SamplerSettings`` that were given.

    The others are described above.

    Raises:
        SettingsError: a value out of its range, or of the wrong type.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    seed: int | None = None
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    think: Think = None
    timeout: float | None = None
    raw: bool = False
    logprobs: int | None = None
    reuse: bool = False
    attempt: int = 0
    on_notice: Callable[[str], object] = ignore
    on_progress: Callable[[str, int, int], object] = ignore
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_in_range(_NUMBERS, self)
        timeout = self.timeout
        is_number = timeout is not None and has_kind(timeout, Real) and (timeout == math.inf or is_finite(timeout))
        if timeout is not None and not (is_number and timeout > 0):
            problem = f"is {written(timeout)} and must be a number of seconds above 0"
            raise SettingsError(problem, argument="timeout", hint="leave it out for no limit")
        object.__setattr__(self, "timeout", own_number(self.timeout))
        object.__setattr__(self, "think", think_of(self.think))
        SamplerSettings(seed=self.seed or 0, attempt=self.attempt, **self.sampling)
        callable_functions(self.tools, self.tool_choice)
        object.__setattr__(self, "stop", stops_of(self.stop))
        object.__setattr__(self, "sampling", MappingProxyType(dict(self.sampling)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReplyOptions:
        """Return options from keyword arguments.

        Raises:
            SettingsError: a name that is not known, or a value that cannot be.
        """
        refuse_unknown(given, REPLY_OPTIONS)
        own = {name: value for name, value in given.items() if name not in SAMPLER_OPTIONS}
        return cls(**own, sampling={name: given[name] for name in given if name in SAMPLER_OPTIONS})


def _options_of(keywords: type) -> dict[str, Option]:
    """Return the options of a list, followed by those of the sampler."""
    own = options_of(keywords, ReplyOptions)
    return {name: option for name, option in own.items() if name not in SAMPLER_OPTIONS} | SAMPLER_OPTIONS


ANSWER_OPTIONS, REPLY_OPTIONS = _options_of(AnswerKeywords), _options_of(ReplyKeywords)
_NUMBERS = {name: REPLY_OPTIONS[name] for name in REPLY_OPTIONS.keys() - SAMPLER_OPTIONS.keys() - {"timeout"}}
