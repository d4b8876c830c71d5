"""Notices about unknown fields of requests, which have no effect."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

__all__ = ["notices_of"]

_WITHOUT_EFFECT = frozenset(("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")) | {
    *("prediction", "prompt_cache_retention", "cache_prompt", "id_slot", "keep_alive", "cache_control")
}
"""Fields of other servers that change no text."""

_AS_IT_IS = ({"modalities": ["text"]}, {"verbosity": "medium"})

_MOST, _LONGEST = 8, 48


def notices_of(body: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return a sentence for each unknown field that may have been meant to change the text.

    Args:
        known: the known fields.
    """
    told: list[str] = []
    for name, value in body.items():
        if value is None or name in known or name in _WITHOUT_EFFECT or {name: value} in _AS_IT_IS:
            continue
        if len(told) == _MOST:
            return [*told, "there are further fields that this server does not know"]
        shown = json.dumps(name[:_LONGEST], ensure_ascii=False)[1:-1]
        near = [each for each in known if name.startswith(f"{each}_")] or get_close_matches(name[:_LONGEST], known, 1)
        told.append(
            f"{shown}: there is no such field, and it was ignored" + (f"; did you mean {near[0]}?" if near else "")
        )
    return told
