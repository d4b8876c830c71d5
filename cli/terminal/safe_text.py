"""Text that changes nothing on a terminal but what is written there."""

from __future__ import annotations

import re

__all__ = ["safe"]

# Control characters could move the cursor, rename the window or answer in the user's name.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """The text with a mark in place of each control character but newlines and tabs."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
