"""Laws of several models behind one address: each writes what it writes alone, and all stay inside one budget."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from family_models import write_family_model
from server_world import wait_until

import edge_spec
from edge_spec import TextModel
from edge_spec.engines.registry import engines
from edge_spec.errors import BudgetExceeded
from edge_spec.loading import process_budget
from edge_spec.memory import Ledger
from edge_spec.server.errors import ApiError
from edge_spec.server.loader import Loader
from edge_spec.server.models import Models
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

pytestmark = pytest.mark.long

NAMES = ("qwen", "smol", "granite")
RUNNING: dict[str, Any] = {
    **{"engine": "llama", "n_threads": 1, "n_ctx": 256, "prefill_chunk": 64, "max_rows": 8},
    **{"speculation": "off", "kv_k": "f16", "kv_v": "f16", "repack": False},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models by name."""
    folder = tmp_path_factory.mktemp("several")
    families = ("Qwen 3", "SmolLM3", "Granite 4")
    return {
        name: write_family_model(folder / f"{name}.gguf", family) for name, family in zip(NAMES, families, strict=True)
    }


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several-cache")


class Several:
    """A server of several models, and what it logged."""

    def __init__(self, loader: Loader, server: ModelServer, log: list[str]) -> None:
        self.loader = loader
        self.url = server.url
        self.log = log

    def ask(self, model: str | None, text: str = "Count.", **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": text}], "seed": 7, "max_tokens": 8, **fields}
        named = {} if model is None else {"model": model}
        return httpx2.post(self.url + "/v1/chat/completions", json={**named, **body}, timeout=120)

    def text(self, model: str, text: str, seed: int) -> tuple[str, str]:
        """The text of an answer, and the numerics profile that wrote it."""
        found = self.ask(model, text, seed=seed).json()
        return found["choices"][0]["message"]["content"], found["system_fingerprint"]

    @property
    def open(self) -> list[str]:
        """The names of the models that are open."""
        return [each["name"] for each in httpx2.get(self.url + "/api/ps").json()["models"]]

    def value(self, name: str) -> float:
        """A metric."""
        lines = httpx2.get(self.url + "/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " "))


class GatedLoader(Loader):
    """Opens nothing before its gate is open."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.gate = threading.Event()
        self.n_opening = 0

    def open(self, *given: Any, **more: Any) -> TextModel:
        self.n_opening += 1
        self.gate.wait()
        return super().open(*given, **more)


Serve = Callable[..., Several]


@pytest.fixture
def serve(files: dict[str, Path], cache_dir: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts a server whose budget holds so many models at a time."""

    def loader_of(kind: type[Loader], models: Sequence[Any], **options: Any) -> Loader:
        return kind({**RUNNING, "cache_dir": cache_dir, **options}, models, folder=tmp_path, environment={})

    with ExitStack() as servers:

        def start(
            holds: int, models: Sequence[Any] = (), kind: type[Loader] = Loader, loading: Any = None, **settings: Any
        ) -> Several:
            models, loading = models or list(files.values()), loading or {}
            planning = loader_of(Loader, models, **loading)
            each = planning.prepare(planning.find(None), lambda stage: None).plan
            held, library_bytes = process_budget(None).held_bytes, 12 << 20
            least = held + library_bytes + holds * each.share_bytes + each.share_bytes // 2
            # What is kept for requests grows with the budget.
            n_bytes = max(least + (8 << 20), least * 32 // 31)
            loader = loader_of(kind, models, memory=n_bytes, **loading)
            log: list[str] = []
            server = ModelServer(loader, ServerSettings(port=0, log=log.append, **settings))
            return Several(loader, servers.enter_context(server), log)

        yield start


def alone(files: dict[str, Path], cache_dir: Path, asked: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
    """What each model writes by itself."""
    found = dict[tuple[str, str, int], tuple[str, str]]()
    for name in sorted({each[0] for each in asked}):
        with edge_spec.load(files[name], cache_dir=cache_dir, **RUNNING) as model:
            for each in asked:
                if each[0] == name:
                    messages = [{"role": "user", "content": each[1]}]
                    text = model.generate(messages, seed=each[2], max_tokens=8).read()
                    found[each] = text, model.profile.name
    return [found[each] for each in asked]


@pytest.mark.parametrize("holds", [1, 2])
def test_each_model_writes_what_it_writes_alone_however_often_they_are_switched(
    serve: Serve, files: dict[str, Path], cache_dir: Path, holds: int
) -> None:
    rng = random.Random(holds)
    asked = [(rng.choice(NAMES), f"Count to {rng.randrange(5)}.", rng.randrange(4)) for _ in range(24)]
    served = serve(holds)
    most_open = 0
    with ThreadPoolExecutor(3) as clients:
        answers = [clients.submit(served.text, *each) for each in asked]
        while not all(each.done() for each in answers):
            most_open = max(most_open, len(served.open))
            time.sleep(0.02)
    assert [each.result() for each in answers] == alone(files, cache_dir, asked)
    assert most_open == holds
    assert sum(served.value(f'edge_spec_model_loads_total{{model="{name}"}}') for name in NAMES) > 3
    assert served.value('edge_spec_models_closed_total{reason="memory"}') > 0
    assert any(line.startswith("opened qwen") for line in served.log)
    assert any(line.startswith("closed qwen") for line in served.log)
    served.loader.ledger.check_integrity()


def test_every_model_is_listed_before_any_is_open(serve: Serve) -> None:
    served = serve(2)
    listed = httpx2.get(served.url + "/v1/models").json()["data"]
    assert [(each["id"], each["loaded"]) for each in listed] == [(name, False) for name in NAMES]
    assert served.open == []
    tags = httpx2.get(served.url + "/api/tags").json()["models"]
    assert [each["name"] for each in tags] == list(NAMES)
    assert all(each["size"] > 0 and each["details"]["format"] == "gguf" for each in tags)
    shown = httpx2.post(served.url + "/api/show", json={"model": "smol"}).json()
    assert "im_start" in shown["template"]
    assert served.open == []
    assert served.ask("smol").json()["model"] == "smol"
    listed = httpx2.get(served.url + "/v1/models").json()["data"]
    assert [each["id"] for each in listed if each["loaded"]] == served.open == ["smol"]
    assert httpx2.get(served.url + "/v1/models/smol").json()["context_length"] == 256
    assert httpx2.get(served.url + "/v1/models/qwen").json()["loaded"] is False


def test_names_forgive_and_the_first_model_is_meant_where_none_is_named(serve: Serve) -> None:
    served = serve(2)
    for name in ("SMOL", "smol.gguf", "smol:latest"):
        assert served.ask(name).json()["model"] == "smol"
    assert served.ask(None).json()["model"] == "qwen"


def test_an_unknown_model_is_told_with_the_nearest_names(serve: Serve, files: dict[str, Path]) -> None:
    served = serve(1)
    for name in ("qwem", "no such thing", str(files["qwen"])):
        found = served.ask(name)
        assert found.status_code == 404
        error = found.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert f"there is no model {name!r}" in error["message"] and "/v1/models" in error["message"]
        assert ("did you mean qwen" in error["message"]) == (name == "qwem")
    assert httpx2.get(served.url + "/v1/models/qwem").status_code == 404
    assert httpx2.post(served.url + "/api/show", json={"model": "qwem"}).status_code == 404
    assert served.open == []


def test_a_model_that_can_never_fit_is_refused_with_both_numbers(serve: Serve, files: dict[str, Path]) -> None:
    served = serve(1, [*files.values(), "smollm2"], loading={"repack": True})
    assert served.ask("qwen").status_code == 200
    found = served.ask("smollm2")
    assert (found.status_code, found.json()["error"]["code"]) == (400, "model_too_large")
    message = found.json()["error"]["message"]
    assert "needs" in message and "MiB" in message.split("needs")[1] and "MiB" in message.split("budget")[1]
    # Nobody gave way to it.
    assert served.open == ["qwen"]


def test_a_file_that_vanished_is_a_model_that_is_not_there(
    serve: Serve, files: dict[str, Path], tmp_path: Path
) -> None:
    gone = tmp_path / "gone.gguf"
    gone.write_bytes(files["qwen"].read_bytes())
    served = serve(1, [files["smol"], gone])
    assert served.ask("gone").status_code == 200
    assert served.ask("smol").status_code == 200
    assert served.open == ["smol"]
    gone.unlink()
    found = served.ask("gone")
    assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")
    assert [each["id"] for each in httpx2.get(served.url + "/v1/models").json()["data"]] == ["smol"]
    assert served.ask("smol").status_code == 200


def test_of_two_that_do_not_fit_together_the_second_waits_for_the_first(serve: Serve) -> None:
    served = serve(1)
    body = {"model": "qwen", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 200}
    asked: dict[str, Any] = {**body, "n": 16, "ignore_eos": True, "stream": True}
    other_asked = {**body, "model": "smol", "max_tokens": 8, "stream": True}
    with httpx2.stream("POST", served.url + "/v1/chat/completions", json=asked, timeout=60) as writing:
        lines = writing.iter_lines()
        # Comments tell how it is opened.
        assert next(line for line in lines if line.startswith("data:"))
        told = list[str]()

        def ask_other() -> None:
            with httpx2.stream("POST", served.url + "/v1/chat/completions", json=other_asked, timeout=120) as answer:
                for line in answer.iter_lines():
                    told.append(line)

        with ThreadPoolExecutor(2) as clients:
            other = clients.submit(ask_other)
            wait_until(lambda: any(": smol: waiting for memory" in line for line in told))
            # Whoever comes later waits behind it, though the model is open: else it would wait for ever.
            later = clients.submit(served.ask, "qwen")
            wait_until(lambda: served.value("edge_spec_requests_waiting") == 2)
            assert served.open == ["qwen"] and not other.done() and not later.done()
            rest = list(lines)
            assert rest[-2] == "data: [DONE]"
            other.result()
            assert (told[-2], later.result().status_code) == ("data: [DONE]", 200)
    opened = [line.split()[1] for line in served.log if line.startswith("opened")]
    assert opened == ["qwen", "smol", "qwen"]


def test_who_waits_too_long_for_memory_is_told_what_lacks(serve: Serve) -> None:
    loader = serve(1).loader

    async def wait() -> ApiError:
        models, now = Models(loader, ServerSettings(port=0), Ledger(None)), asyncio.get_running_loop().time
        used = await models.lease(await models.find("qwen"), now() + 100)
        with pytest.raises(ApiError) as caught:
            await models.lease(await models.find("smol"), now() + 4)
        used.end()
        # Nothing of who has left stands in the way.
        (await models.lease(await models.find("smol"), now() + 100)).end()
        await models.close()
        return caught.value

    error = asyncio.run(wait())
    assert error.status == 504
    assert re.search(r"smol was not open in time .*MiB more than is left beside qwen", str(error))


def test_who_leaves_while_its_model_loads_takes_nothing_with_it(serve: Serve) -> None:
    served = serve(1, kind=GatedLoader)
    loader: Any = served.loader
    body = {"model": "qwen", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 1}
    for _ in range(3):
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(served.url + "/v1/chat/completions", json=body, timeout=0.5)
    wait_until(lambda: served.value("edge_spec_requests_waiting") == 0)
    with ThreadPoolExecutor(1) as clients:
        # It waits for its turn, and leaves before it comes.
        left = clients.submit(
            httpx2.post, served.url + "/v1/chat/completions", json={**body, "model": "smol"}, timeout=0.5
        )
        with pytest.raises(httpx2.TimeoutException):
            left.result()
    loader.gate.set()
    wait_until(lambda: served.open == ["qwen"])
    assert loader.n_opening == 1
    assert served.ask("qwen").status_code == 200
    assert served.ask("smol").status_code == 200
    assert served.value("edge_spec_requests_waiting") == 0
    assert served.open == ["smol"]


def test_a_load_tells_its_progress_to_clients_that_read_a_stream(serve: Serve) -> None:
    served = serve(1, kind=GatedLoader)
    loader: Any = served.loader
    body = {"model": "qwen", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 4, "stream": True}
    with httpx2.stream("POST", served.url + "/v1/chat/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": qwen: loading"
        loader.gate.set()
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert all(line.startswith((": qwen: ", "data: ")) for line in rest)
    # Without a stream, or where it is quick, errors have their status.
    assert served.ask("qwen", stream=True, max_tokens=0).status_code == 400


def test_a_stream_whose_model_cannot_be_opened_ends_with_the_error(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(1, kind=GatedLoader)
    loader: Any = served.loader
    monkeypatch.setattr(Loader, "open", lambda *given: (_ for _ in ()).throw(edge_spec.errors.BackendError("no luck")))
    body = {"model": "qwen", "messages": [{"role": "user", "content": "Count."}], "stream": True}
    for path, said in (("/v1/chat/completions", '"message":"no luck"'), ("/api/chat", '{"error":"no luck"}')):
        loader.gate.clear()
        with httpx2.stream("POST", served.url + path, json=body, timeout=60) as stream:
            assert stream.status_code == 200
            loader.gate.set()
            assert said in "".join(stream.iter_text())
    assert served.open == []
    assert served.loader.ledger.left_bytes is not None


def test_keep_alive_says_how_long_a_model_stays_open(serve: Serve) -> None:
    served = serve(2, idle_s=1.0)
    assert served.ask("smol").status_code == 200
    assert served.open == ["smol"]
    wait_until(lambda: served.open == [])

    def generate(**fields: Any) -> dict[str, Any]:
        asked = {"model": "qwen", "stream": False, "options": {"num_predict": 2}, **fields}
        found: dict[str, Any] = httpx2.post(served.url + "/api/generate", json=asked, timeout=60).json()
        return found

    assert generate(keep_alive=-1)["done_reason"] == "load"
    (held,) = httpx2.get(served.url + "/api/ps").json()["models"]
    assert held["expires_at"].startswith("9999-")
    time.sleep(2)
    assert served.open == ["qwen"]
    assert generate(keep_alive=0)["done_reason"] == "unload"
    wait_until(lambda: served.open == [])
    # What is not open is not opened to be closed.
    assert generate(keep_alive="0s")["done_reason"] == "unload"
    assert generate(prompt="Hello", keep_alive="0")["done"]
    wait_until(lambda: served.open == [])
    assert served.value('edge_spec_model_loads_total{model="qwen"}') == 2
    assert generate(prompt="Hello", keep_alive="soon")["error"].startswith("keep_alive: ")


def test_what_can_be_planned_is_never_refused_when_nothing_else_is_open(
    files: dict[str, Path], cache_dir: Path, tmp_path: Path
) -> None:
    models = ["demo", *files.values()]
    least, n_planned = process_budget(None).held_bytes, 0
    for mib in (50, 58, 66, 74, 82, 100, 200, 400):
        options = {"memory": least + (mib << 20), "cache_dir": cache_dir, "n_threads": 1}
        loader = Loader(options, models, folder=tmp_path, environment={})
        loader.ledger.claim("process", "requests", loader.requests_bytes)
        for model in ("demo", "qwen"):
            for engine in engines():
                # Whatever other models have loaded.
                engine.load_library()
            with suppress(BudgetExceeded):
                prepared = loader.prepare(loader.find(model), lambda stage: None)
                n_planned += 1
                assert loader.lacking_bytes(prepared) == 0
    assert n_planned > 6


def test_drafters_of_idle_models_give_way_before_a_model_is_closed_and_no_text_depends_on_it(
    files: dict[str, Path], cache_dir: Path
) -> None:
    drafted = {**RUNNING, "speculation": "hierarchy", "cache_dir": cache_dir}
    messages = [{"role": "user", "content": "Count to ten."}]
    with edge_spec.load("demo", **drafted) as model:
        texts = [model.generate(messages, seed=seed, max_tokens=24).read() for seed in range(3)]
        held, spare = model.ledger.held_bytes, model.spare_bytes
        assert spare > 0
        n_steps = 0
        while model.give_way():
            n_steps += 1
        assert n_steps >= 2 and model.spare_bytes < spare // 4
        assert model.ledger.held_bytes <= held - spare // 2
        assert not {line.owner for line in model.ledger} & {"draft", "intermediate"}
        assert [model.generate(messages, seed=seed, max_tokens=24).read() for seed in range(3)] == texts
        with model.generate(messages, seed=1, max_tokens=24) as reply:
            next(iter(reply))
            assert not model.give_way()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_the_process_stays_inside_the_budget_while_models_are_switched(
    files: dict[str, Path], surroundings: dict[str, str]
) -> None:
    budget = 160
    options = ["--memory", f"{budget}MiB", "--engine", "llama", "--threads", "1", "--ctx", "256", "--port", "0"]
    command = [
        sys.executable,
        "-c",
        "from edge_spec.cli import main; main()",
        "serve",
        *map(str, files.values()),
        *options,
    ]
    rng = random.Random(0)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings) as serving:
        assert serving.stderr is not None
        try:
            url = next(found[0] for line in serving.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))

            def ask(name: str) -> int:
                body = {"model": name, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 8}
                return httpx2.post(url + "/v1/chat/completions", json=body, timeout=120).status_code

            most = 0.0
            with ThreadPoolExecutor(3) as clients:
                answers = [clients.submit(ask, rng.choice(NAMES)) for _ in range(40)]
                while not all(each.done() for each in answers):
                    pages = int(Path(f"/proc/{serving.pid}/statm").read_text().split()[1])
                    most = max(most, pages * os.sysconf("SC_PAGESIZE") / (1 << 20))
                    time.sleep(0.02)
            assert {each.result() for each in answers} == {200}
            assert most <= budget
            loads = httpx2.get(url + "/metrics").text
            assert 'edge_spec_models_closed_total{reason="memory"}' in loads
            serving.send_signal(signal.SIGTERM)
            said = serving.stderr.read()
            assert serving.wait(timeout=20) == 0
            assert "closed" in said and "Traceback" not in said
        finally:
            serving.kill()
