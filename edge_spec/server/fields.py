"""The fields of requests, as OpenAI's API names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from edge_spec.generation.tools.functions import NAME
from edge_spec.server.errors import bad_value

__all__ = [
    "EACH",
    "MAX_BIASES",
    "MAX_CHOICES",
    "MAX_GRAMMAR",
    "MAX_SCHEMAS",
    "MAX_TOLD",
    "TOLD_BYTES",
    "AllowedChoiceFields",
    "ChatFields",
    "ChoiceFields",
    "CompletionFields",
    "Fields",
    "FunctionFields",
    "MessageFields",
    "ReplyFields",
    "parse",
]

MAX_CHOICES = 128
MAX_BIASES = 1 << 12
MAX_GRAMMAR = 1 << 16
"""The longest grammar, in characters: a small request must not keep the processor busy for long."""

MAX_SCHEMAS = 1 << 17
"""The most characters of schemas in a request."""

MAX_TOLD = 1 << 20
TOLD_BYTES = 96
"""The most log probabilities in a response that is not streamed, and the bytes of each."""

MAX_STOPS = 16
MAX_TOP = 20

_UNLIMITED = _DRAWN = -1
"""The value that means no limit, as in other servers."""

EACH: Any = Field(fail_fast=True)
"""Validation of a list stops at the first wrong item: reporting a hundred thousand would take seconds."""

Limit = Literal[-1] | Annotated[int, Field(ge=1)]


class Fields(BaseModel):
    """Base of fields: unknown fields are ignored, wrong types are errors, and null means that a field is absent."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None}


class StreamFields(Fields):
    include_usage: bool = False


class FormatFields(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    own_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ReplyFields(Fields):
    """Fields that completions and chat completions share.

    Fields of ``SamplerSettings`` are taken from the request by their names; what has a name of OpenAI's is here.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamFields = StreamFields()
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS), EACH] = []
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = {}
    response_format: FormatFields | None = None
    # Of other servers.
    json_schema: dict[str, Any] | None = None
    format: Literal["json"] | dict[str, Any] | None = None
    # Ours.
    grammar: str | None = None
    speculation: str | None = None
    token_events: bool = False

    @property
    def own_seed(self) -> int | None:
        """The seed; None for a random one."""
        return None if self.seed == _DRAWN else self.seed

    def limit(self, otherwise: int | None) -> int | None:
        """Return the most tokens of a reply; None for as many as fit.

        Args:
            otherwise: that of a request that says nothing.
        """
        limit = self.max_completion_tokens or self.max_tokens or otherwise
        return None if limit == _UNLIMITED else limit


class CompletionFields(ReplyFields):
    prompt: (
        str
        | Annotated[list[str], EACH]
        | Annotated[list[int], EACH]
        | Annotated[list[Annotated[list[int], EACH]], EACH]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: int | None = None


class FunctionFields(Fields):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Fields):
    type: Literal["function"]
    function: FunctionFields


class CalledFields(Fields):
    name: str
    arguments: str | dict[str, Any] = "{}"


class CallFields(Fields):
    id: str = ""
    function: CalledFields


class PartFields(Fields):
    type: str
    text: str | None = None
    refusal: str | None = None


class MessageFields(Fields):
    """A message as clients send it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[PartFields], EACH] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallFields], EACH] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class NamedFields(Fields):
    name: str


class ChoiceFields(Fields):
    type: Literal["function"] = "function"
    function: NamedFields


class AllowedFields(Fields):
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ChoiceFields], EACH]


class AllowedChoiceFields(Fields):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedFields


def _kind_of_choice(given: Any) -> str:
    """Return the branch of a ``tool_choice``, so that only one branch reports errors."""
    if not isinstance(given, Mapping | Fields):
        return "a word"
    kind = given.get("type") if isinstance(given, Mapping) else getattr(given, "type", None)
    return "some functions" if kind == "allowed_tools" else "a function"


class ChatFields(ReplyFields):
    messages: Annotated[list[MessageFields], Field(min_length=1), EACH]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0
    tools: Annotated[list[ToolFields], EACH] = []
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag("a word")]
        | Annotated[ChoiceFields, Tag("a function")]
        | Annotated[AllowedChoiceFields, Tag("some functions")],
        Discriminator(_kind_of_choice),
    ] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


F = TypeVar("F", bound=Fields)


def parse(kind: type[F], body: Mapping[str, Any]) -> F:
    """Return the fields of a request. A field that is null counts as absent.

    Raises:
        ApiError: a field is missing, of the wrong type or out of its range.
    """
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        # Each branch of a union reports errors; the one deepest in the request is the most precise.
        complaints = [
            (_place(each["loc"], given, missing=each["type"] == "missing"), _wanted(each))
            for each in error.errors(include_url=False)
        ]
        param = max((place for place, _ in complaints), key=len)
        first, *others = dict.fromkeys(wanted for place, wanted in complaints if place == param)
        wanted = " or ".join((first, *(each.removeprefix("must be ") for each in others)))
        raise bad_value(param, wanted) from None


def _place(loc: tuple[int | str, ...], value: Any, *, missing: bool) -> str:
    """Return a path in the request, such as ``messages[0].content``. Names of a union's branches are left out."""
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, Mapping) and (part in value or (missing and part == loc[-1])):
            place += f".{part}" if place else part
            value = value.get(part)
    return place


_WANTED = {
    "missing": "this field is needed",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "literal_error": "must be one of {expected}",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_pattern_mismatch": "must be 1 to 128 letters, digits, dots, dashes and underscores",
}
"""In the words of this API: the library's own name its classes."""


def _wanted(error: Any) -> str:
    sentence = _WANTED.get(error["type"], "is not what OpenAI's API describes here").format(**error.get("ctx", {}))
    return sentence if " or " in sentence else sentence.replace("must be one of", "must be")
