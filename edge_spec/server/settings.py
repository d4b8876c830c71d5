"""How a server behaves."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any

from edge_spec.errors import Sentence, SettingsError
from edge_spec.options import require_whole

__all__ = ["ServerSettings", "duration_s", "is_address", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this computer only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h)", re.ASCII)


def duration_s(value: object) -> float:
    """Return the seconds of a duration as ollama has it: a number of seconds, or ``5m`` or ``1h30m``; infinite if it
    is negative.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(value)
    if isinstance(value, str):
        sign, text = (-1, value[1:]) if value.startswith("-") else (1, value)
        if re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
            seconds = sign * sum(float(n) * _UNIT_S[unit] for n, unit in _PART.findall(text))
        else:
            seconds = float(value)
    else:
        seconds = float(value)
    if isnan(seconds):
        raise ValueError(value)
    return inf if seconds < 0 else seconds


def is_address(host: str) -> bool:
    """Return whether a host is a numeric address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_BOUNDS = {"port": (0, 65535), "at_once": (1, 256), "max_waiting": (0, 1 << 31), "max_body_bytes": (1024, 1 << 40)}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a server behaves.

    Attributes:
        name: what clients call the model; as its file if empty.
        host, port: where it listens; port 0 for any that is free.
        api_key: the key that clients must send as ``Authorization: Bearer ...``; None to ask for none.
        insecure: listen on an address that other computers reach, although there is no key.
        allowed_hosts: names of this server besides its address, for the ``Host`` header.
        allowed_origins: web pages from elsewhere that may use it, such as ``https://chat.example``.
        at_once: requests that are answered at a time; as many as a decode can advance if None.
        max_waiting: requests that may wait besides; further ones are refused with 429.
        max_body_bytes: the largest request.
        discarded_bytes: bytes of a too large body to read and discard: a client may never see the answer if its
            connection is closed while it sends.
        timeout_s: the most seconds from the arrival of a request to the end of its answer, waiting included.
        head_timeout_s, body_timeout_s: how long the head of a request, and its body, may take to arrive.
        keep_alive_s: interval of comments while nothing is written, since proxies may close silent connections.
        idle_s: seconds for which one of several models stays open after it was used last; infinite to keep it until
            others need its memory.
        last_words_s: seconds that a client has to take the error that ends a stream.
        max_connections: requests of further ones are refused with 503.
        max_tokens: the most tokens of a reply where a request does not say; what fits the context if None.
        sampling: fields of ``SamplerSettings`` where a request does not say.
        log: called with a line for each request, without its text.

    Raises:
        SettingsError: a value is out of its range, or other computers could use it without a key.
    """

    name: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    at_once: int | None = None
    max_waiting: int = 64
    max_body_bytes: int = 4 << 20
    discarded_bytes: int = 64 << 20
    timeout_s: float = 1800.0
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 15.0
    idle_s: float = 300.0
    last_words_s: float = 5.0
    max_connections: int = 1024
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    log: Callable[[str], object] = lambda line: None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise SettingsError(
                f"is {self.name!r} and must be printable characters", argument="name", hint="choose another one"
            )
        for name, (least, most) in _BOUNDS.items():
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), least, most)
        for name in ("timeout_s", "head_timeout_s", "body_timeout_s", "keep_alive_s", "last_words_s"):
            if not getattr(self, name) > 0:  # nor is it NaN
                raise SettingsError(f"is {getattr(self, name):g} and must be above 0", argument=name)
        if not self.idle_s >= 0:
            raise SettingsError(f"is {self.idle_s:g} and must not be negative", argument="idle_s")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise SettingsError("must be printable ASCII characters, at least one", argument="api_key")
        if not (is_loopback(self.host) or self.api_key or self.insecure):
            raise SettingsError(
                f"is {self.host}, where other computers could use the model without a key",
                argument="host",
                hint=Sentence("give {api_key}, or set {insecure} if anybody may"),
            )

    @property
    def is_open(self) -> bool:
        """Whether other computers can use it without a key."""
        return self.api_key is None and not is_loopback(self.host)
