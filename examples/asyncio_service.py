"""A service for event loops: every connection is a conversation, every line a message, and many clients take turns.

    python examples/asyncio_service.py [MODEL] [--port 7070]
    nc 127.0.0.1 7070

Answers stream as they are written. A client that leaves cancels its answer; one that waits too long for its turn, or
whose answer takes too long, gets what there is. Other clients are served meanwhile: nothing here stops the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

import edge_spec

TIMEOUT_S = 60


async def serve_client(model: edge_spec.TextModel, lines: StreamReader, out: StreamWriter) -> None:
    """Answer the lines of one client until it leaves."""
    conversation = model.chat(max_tokens=200, timeout=TIMEOUT_S)
    try:
        while question := (await lines.readline()).decode("utf-8", "replace").strip():
            try:
                async with conversation.send(question) as reply:
                    async for piece in reply:
                        out.write(piece.encode())
                        # Raises when the client has left: the reply is closed, and the next client has the model.
                        await out.drain()
                if reply.finish_reason == "timeout":
                    out.write(b" [out of time]")
            except edge_spec.EdgeSpecError as error:
                out.write(f"error: {error}".encode())
            out.write(b"\n")
            await out.drain()
    except ConnectionError:
        pass
    finally:
        await asyncio.to_thread(conversation.close)
        out.close()
        with suppress(ConnectionError):
            await out.wait_closed()


async def main() -> None:
    """Load the model and serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve conversations over TCP.")
    parser.add_argument("model", nargs="?", help="a GGUF or a name; smollm2 or the demo model if left out")
    parser.add_argument("--port", type=int, default=7070)
    given = parser.parse_args()
    async with edge_spec.aload(given.model) as model:
        server = await asyncio.start_server(lambda *client: serve_client(model, *client), "127.0.0.1", given.port)
        print(f"{model.info.name} on port {server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped")
