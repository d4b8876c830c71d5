"""Log probabilities of tokens in responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from edge_spec.generation.events import TokenEvent
from edge_spec.server.dialect import json_of

__all__ = ["LOWEST", "Spelling", "Told", "likelihoods", "with_logprobs"]

Spelling = Callable[[int], bytes]
"""The bytes of a token."""

LOWEST = -9999.0
"""JSON has no infinity; OpenAI writes this for impossible tokens."""


def with_logprobs(events: Iterable[TokenEvent]) -> list[tuple[TokenEvent, int, float]]:
    """Return the events of tokens whose log probability is known, with their ids and it."""
    return [(event, event.id, event.logprob) for event in events if event.id is not None and event.logprob is not None]


def likelihoods(events: Iterable[TokenEvent], spelling: Spelling) -> list[dict[str, Any]]:
    """Return the log probabilities of tokens, as chat completions have them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = spelling(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    return [
        {**entry(token, logprob), "top_logprobs": [entry(*each) for each in event.top.items()]}
        for event, token, logprob in with_logprobs(events)
    ]


_TOLD = ("logprobs", "token_events")


class Told:
    """The log probabilities of a choice as growing JSON text: objects would take ten times the memory."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, bytearray]] = {}

    def add(self, choice: Mapping[str, Any]) -> int:
        """Add log probabilities of further tokens; return by how many bytes the text has grown."""
        n_bytes = 0
        for field in _TOLD:
            told = choice.get(field)
            for name, items in (told or {}).items() if not isinstance(told, list) else [("", told)]:
                if items:
                    text = self._lists.setdefault(field, {}).setdefault(name, bytearray())
                    more = b"," * bool(text) + json_of(items)[1:-1]
                    text += more
                    n_bytes += len(more)
        return n_bytes

    def within(self, choice: Mapping[str, Any]) -> Iterator[bytes | bytearray]:
        """Yield the JSON of a choice with these log probabilities."""
        yield json_of({name: value for name, value in choice.items() if name not in self._lists})[:-1]
        for field, lists in self._lists.items():
            is_object = "" not in lists
            yield b"," + json_of(field) + b":" + b"{" * is_object
            for number, (name, text) in enumerate(lists.items()):
                yield b"," * bool(number) + (json_of(name) + b":") * is_object + b"["
                yield text
                yield b"]"
            yield b"}" * is_object
        yield b"}"
