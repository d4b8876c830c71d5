"""What a server is doing, as its clients can see it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2

__all__ = ["wait_until", "waiting"]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; it is an error if that takes longer than a minute."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never happened")


def waiting(served: Any) -> tuple[int, int]:
    """Return how many requests wait and are answered."""
    text = httpx2.get(served.url + "/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(float(values["edge_spec_requests_waiting"])), int(float(values["edge_spec_requests_writing"]))
