"""Listen on an address and serve a model there."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Self

import uvicorn

from edge_spec.errors import EdgeSpecError, Sentence, SettingsError
from edge_spec.model import TextModel
from edge_spec.server.app import make_app
from edge_spec.server.connections import BoundedProtocol
from edge_spec.server.loader import Loader
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings

__all__ = ["ModelServer", "listen"]

_BACKLOG = 2048
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IDLE_S = 75
_LEAVE_S = 5
"""Seconds that clients have to receive the rest of their answers when the server stops."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        SettingsError: the address is none of this computer. EdgeSpecError: the port is taken.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"cannot listen on {host}: {error}", argument="host") from None
    try:
        if os.name == "posix":
            # Elsewhere it would let two programs listen on one port.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "give an address of this computer"
            raise SettingsError(f"is {host!r}: {error.strerror}", argument="host", hint=hint) from None
        raise EdgeSpecError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint=Sentence("choose another {port}, or 0 for any free one"),
        ) from None
    return found


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which cancels replies when it is asked to stop, instead of finishing them.

    Attributes:
        on_listening: called once Ctrl-C stops it.
    """

    service: Service | None = None
    on_listening: Callable[[], object] = staticmethod(lambda: None)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn, without raising signals again: Ctrl-C is the usual way to stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _STOP_SIGNALS}
        try:
            self.on_listening()
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        # A second signal ends the process at once, whatever keeps the server from stopping.
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.stop()

    def stop(self) -> None:
        """Stop, from any thread."""
        self.should_exit = True
        service = self.service
        if service is not None:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(service.stop)

    def started_with(self, service: Service) -> None:
        """Called when the event loop runs."""
        self.loop = asyncio.get_running_loop()
        self.service = service


class ModelServer:
    """Serves models to clients of OpenAI, Anthropic and ollama.

    ``run`` serves until Ctrl-C. As a context manager it serves from a thread of its own while the context lasts:

        with edge_spec.load() as model, ModelServer(model, ServerSettings(port=0)) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")

    Args:
        source: the only model, which is not closed, or what opens the models that requests name.
        settings: how the server behaves.
        listening: the socket, of ``listen``, where it waits for clients; made of the settings if None.

    Attributes:
        url: its address.

    Raises:
        SettingsError: the address is none of this computer. EdgeSpecError: the port is taken.
    """

    def __init__(
        self,
        source: TextModel | Loader,
        settings: ServerSettings | None = None,
        *,
        listening: socket.socket | None = None,
    ) -> None:
        settings = settings or ServerSettings()
        if not settings.name and isinstance(source, TextModel):
            settings = replace(settings, name=source.info.name)
        self._socket = listening or listen(settings.host, settings.port)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                make_app(source, settings, lambda service: self._uvicorn.started_with(service)),
                loop="asyncio",
                http=partial(BoundedProtocol, settings),  # type: ignore[arg-type]  # called like the class
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=_LEAVE_S,
            )
        )
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ModelServer {self.url}>"

    def run(self, on_listening: Callable[[], object] = lambda: None) -> None:
        """Serve until Ctrl-C, or until ``stop``.

        Args:
            on_listening: called once Ctrl-C stops it; in the main thread only, which alone hears of it.
        """
        self._uvicorn.on_listening = on_listening
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Cancel replies and stop serving. May be called from any thread."""
        self._uvicorn.stop()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="edge-spec-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()
