"""Responses in OpenAI's form, whole and in chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from edge_spec.generation.events import TokenEvent
from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel

__all__ = ["Told", "chat_logprobs", "completion_logprobs", "ending", "envelope", "json_of", "token_events", "usage"]

Spelling = Callable[[int], bytes]
"""The bytes of a token."""


def envelope(kind: str, prefix: str, name: str, model: TextModel) -> dict[str, Any]:
    """Return the fields that all objects of one response share.

    Args:
        kind: the ``object`` that they are.
        prefix: what their id begins with.
        name: what clients call the model.
    """
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": name,
        # Equal fingerprints, prompts, settings and seeds give equal text.
        "system_fingerprint": model.profile.name,
    }


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


def json_of(value: Any) -> bytes:
    """Return a value in JSON, as responses have it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def ending(answer: Reply | None, *, has_calls: bool = False) -> dict[str, Any]:
    """Return OpenAI's ``finish_reason`` and our ``ended_by``, which knows more reasons.

    None if it has not.
    """
    if answer is None:
        return {"finish_reason": None}
    reason = "length"
    if answer.finish_reason in ("eos", "stop"):
        reason = "tool_calls" if has_calls else "stop"
    return {"finish_reason": reason, "ended_by": answer.finish_reason}


def usage(answers: Sequence[Reply], n_prompt: int, n: int) -> dict[str, Any]:
    """Return the numbers of tokens read, written, drafted and accepted.

    Args:
        n_prompt: tokens of all prompts; one that got several replies counts once.
        n: how many replies each prompt got; the first one tells what of the prompt was not read.
    """
    statistics = [answer.statistics for answer in answers]
    n_written = sum(done.tokens for done in statistics)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_written,
        "total_tokens": n_prompt + n_written,
        "prompt_tokens_details": {"cached_tokens": sum(answer.n_reused for answer in answers[::n])},
        "drafted_tokens": sum(done.drafted for done in statistics),
        "accepted_tokens": sum(done.accepted for done in statistics),
        "rounds": sum(done.rounds for done in statistics),
    }


def chat_logprobs(events: Iterable[TokenEvent], spelling: Spelling) -> dict[str, Any]:
    """Log probabilities of tokens, as chat completions have them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = spelling(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, _LOWEST), "bytes": list(raw)}

    return {
        "content": [
            {**entry(token, logprob), "top_logprobs": [entry(*each) for each in event.top.items()]}
            for event, token, logprob in _with_logprobs(events)
        ]
    }


def completion_logprobs(events: Iterable[TokenEvent], spelling: Spelling, *, offset: int) -> dict[str, Any]:
    """Return the same, as completions have them.

    Args:
        offset: how many characters of the text come before.
    """
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for event, token, logprob in _with_logprobs(events):
        found["tokens"].append(_text(spelling(token)))
        found["token_logprobs"].append(max(logprob, _LOWEST))
        found["top_logprobs"].append({_text(spelling(each)): max(x, _LOWEST) for each, x in event.top.items()})
        found["text_offset"].append(offset)
        offset += len(event.text)
    return found


def token_events(events: Iterable[TokenEvent], spelling: Spelling) -> list[dict[str, Any]]:
    """Return our events: who drafted each token, and its log probability if ``logprobs`` asks for it."""
    return [
        {
            "id": event.id,
            "text": event.text,
            "drafted_by": event.drafted_by,
            "round": event.round,
            "logprob": None if event.logprob is None else max(event.logprob, _LOWEST),
            "top": [
                {"id": token, "text": _text(spelling(token)), "logprob": max(logprob, _LOWEST)}
                for token, logprob in event.top.items()
            ],
        }
        for event in events
    ]


_LOWEST = -9999.0
"""JSON has no infinity; OpenAI writes this for impossible tokens."""


def _with_logprobs(events: Iterable[TokenEvent]) -> list[tuple[TokenEvent, int, float]]:
    return [(event, event.id, event.logprob) for event in events if event.id is not None and event.logprob is not None]


def _text(raw: bytes) -> str:
    """Return the text of a token; if it is part of a character, its bytes, as OpenAI writes them."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
