"""A server of the demo model in a thread, on a free port."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import edge_spec
from edge_spec.model import TextModel
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings


@dataclass(frozen=True)
class Served:
    """A server, its model, and clients of it."""

    model: TextModel
    url: str
    client: openai.OpenAI
    log: list[str]

    def chat(self, text: str = "Tell me a story about a dog.", **fields: Any) -> Any:
        """An answer, through the official client."""
        asked = {"model": "demo", "messages": [{"role": "user", "content": text}], "seed": 7, "max_tokens": 24}
        return self.client.chat.completions.create(**{**asked, **fields})

    def post(self, path: str = "/v1/chat/completions", **more: Any) -> httpx2.Response:
        """An answer to whatever is sent."""
        return httpx2.post(self.url + path, timeout=60, **more)


@pytest.fixture(scope="session")
def demo_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], TextModel]]:
    """The demo model by engine, loaded when first asked for.

    Whether drafts pay is what this load has found, not what other tests have learned.
    """
    loaded: dict[str, TextModel] = {}
    cache: Path = tmp_path_factory.mktemp("serve-cache")

    def load(engine: str) -> TextModel:
        if engine not in loaded:
            loaded[engine] = edge_spec.load("demo", engine=engine, n_threads=1, cache_dir=cache)
        return loaded[engine]

    yield load
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="session")
def serve(demo_models: Callable[[str], TextModel]) -> Iterator[Callable[..., Served]]:
    """Starts servers; the same one for the same settings."""
    started: dict[str, Served] = {}
    with ExitStack() as servers:

        def start(engine: str = "llama", **settings: Any) -> Served:
            key = repr((engine, sorted(settings.items())))
            if key not in started:
                log: list[str] = []
                model = demo_models(engine)
                server = servers.enter_context(
                    ModelServer(model, ServerSettings(**{"port": 0, "name": "demo", "log": log.append, **settings}))
                )
                key_of = settings.get("api_key", "none")
                client = servers.enter_context(
                    openai.OpenAI(base_url=server.url + "/v1", api_key=key_of, max_retries=0, timeout=60)
                )
                started[key] = Served(model, server.url, client, log)
            return started[key]

        yield start


@pytest.fixture(scope="session")
def served(serve: Callable[..., Served]) -> Served:
    """A server as it comes."""
    return serve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright (`pip install playwright`)."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def windows(browser: Any, served: Any) -> Iterator[Callable[[], Any]]:
    """Opens windows of one browser with the page, as narrow as a phone; what goes wrong in them fails the test."""
    context = browser.new_context(viewport={"width": 360, "height": 640})
    wrong: list[str] = []

    def opened() -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text))
        page.goto(served.url)
        page.get_by_role("heading", name="demo").wait_for()
        return page

    yield opened
    assert not [said for said in wrong if "net::ERR" not in said and "Failed to load resource" not in said]
    context.close()


@pytest.fixture
def page(windows: Callable[[], Any]) -> Any:
    return windows()
