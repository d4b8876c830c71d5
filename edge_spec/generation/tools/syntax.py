"""How models write calls of tools, by what their chat templates show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_spec.generation.tools.arguments import BARE, JSON, PYTHON, TAGGED, Arguments
from edge_spec.sampling.lark import literal

__all__ = ["FORMS", "HERMES", "LLAMA", "CallSyntax", "syntax_of"]


@dataclass(frozen=True, kw_only=True)
class CallSyntax:
    """How calls are written: ``opening``, a name, ``middle``, arguments, ``closing``.

    Attributes:
        shown_by: patterns that templates hold which show it, beside ``tools``.
        mark: what tells that a call begins; empty where an answer that begins like one is one.
        opening: what comes before the name, the mark included.
        middle: what stands between the name and the arguments.
        header: a regular expression of what else may stand there, ``middle`` at its end; empty if nothing may.
        arguments: how these are written.
        closing: what comes after the arguments.
        separator: what stands between two calls.
        joined: what stands between two calls within one opening and closing, instead; empty where there is one.
        forced: what comes before the name of a call that has to be made; empty for ``opening``.
        takes_many: whether the template takes several calls in one message.
        takes_results: whether the template takes results where it writes no calls itself.
    """

    shown_by: tuple[str, ...]
    mark: str
    opening: str
    middle: str = ""
    header: str = ""
    arguments: Arguments = JSON
    closing: str = ""
    separator: str = ""
    joined: str = ""
    forced: str = ""
    takes_many: bool = True
    takes_results: bool = True

    @property
    def between(self) -> str:
        """An expression of what stands between name and arguments."""
        return f"/{self.header}/" if self.header else literal(self.middle) if self.middle else ""

    def written(self, calls: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return calls as the model writes them: each, or all that are joined."""
        texts = [call["name"] + self.middle + self.arguments.written(call["arguments"]) for call in calls]
        texts = [self.joined.join(texts)] if self.joined else texts
        return [self.opening + text + self.closing for text in texts]


HERMES = CallSyntax(
    # The beginning of a call, as templates quote it; others write lists of calls.
    shown_by=("<tool_call>", r"\{\\*[\"']name\\*[\"']", r"(?s)\A(?!.*<tool_calls>)"),
    mark="<tool_call>",
    opening='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    separator="\n",
    takes_results=False,
)
"""Hermes, Qwen 2.5 and 3, SmolLM, Granite 4, and every model that is told so in its prompt."""

LLAMA = CallSyntax(
    shown_by=("ipython", '"parameters"'),
    mark="",
    opening='{"name": "',
    middle='", "parameters": ',
    closing="}",
    separator="; ",
    takes_many=False,
)
"""Llama 3.1 to 3.3."""

FORMS = (
    CallSyntax(  # gpt-oss; the token that ends a call, ``<|call|>``, ends the answer, so there is one in each
        shown_by=(r"<\|channel\|>", r"to=", r"functions\."),
        mark=" to=functions.",
        opening=" to=functions.",
        middle="<|message|>",
        header=r"( ?<\|channel\|>commentary)?( ?(<\|constrain\|>)?json)?<\|message\|>",
        forced="<|channel|>commentary to=functions.",
        takes_many=False,
    ),
    CallSyntax(  # Gemma 4
        shown_by=(r"<\|tool_call>call:",),
        mark="<|tool_call>",
        opening="<|tool_call>call:",
        arguments=BARE,
        closing="<tool_call|>",
    ),
    CallSyntax(  # Qwen 3.5, Qwen 3 Coder, Nemotron 3
        shown_by=("<tool_call>", "<function="),
        mark="<tool_call>",
        opening="<tool_call>\n<function=",
        middle=">\n",
        arguments=TAGGED,
        closing="\n</tool_call>",
        separator="\n",
    ),
    HERMES,
    CallSyntax(  # LFM2 and LFM2.5
        shown_by=(r"List of tools: (<\|tool_list_start\|>)?\[",),
        mark="<|tool_call_start|>",
        opening="<|tool_call_start|>[",
        arguments=PYTHON,
        closing="]<|tool_call_end|>",
        joined=", ",
    ),
    CallSyntax(  # Ministral 3
        shown_by=(r"\[TOOL_CALLS\]", r"\[ARGS\]", r"(?s)\A(?!.*\[CALL_ID\])"),
        mark="[TOOL_CALLS]",
        opening="[TOOL_CALLS]",
        middle="[ARGS]",
    ),
    LLAMA,
)


def syntax_of(template: str) -> CallSyntax | None:
    """Return what a template teaches its model; None if it knows no tools, or writes calls in a way of its own."""
    if "tools" not in template:
        return None
    return next((form for form in FORMS if all(re.search(shown, template) for shown in form.shown_by)), None)
