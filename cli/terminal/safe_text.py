"""Text without control characters."""

from __future__ import annotations

import re

__all__ = ["safe"]

# Control characters could move the cursor, rename the window or type in the user's name.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """The text with a replacement character for each control character but newlines and tabs."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
