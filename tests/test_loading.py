"""Laws of loading: the demo family writes the same text in every mode, and bad input is one clear sentence."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.errors import (
    Closed,
    EdgeSpecError,
    ModelNotFound,
    NotAModel,
    OutOfMemory,
    PromptTooLong,
    SettingsError,
    TruncatedModel,
    UnsupportedModel,
    VocabularyMismatch,
)
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.modes import MODES

pytestmark = pytest.mark.long

DEMO = resolve_family("demo")
DRAFTER = DEMO.draft or DEMO.target


@pytest.fixture
def load(probe_cache: Path) -> Callable[..., edge_spec.TextModel]:
    def load_it(model: Any = "demo", **values: Any) -> edge_spec.TextModel:
        # One thread: two that wait for each other on a busy machine are slower.
        return edge_spec.load(model, **({"cache_dir": probe_cache, "n_ctx": 400, "n_threads": 1} | values))

    return load_it


class Random:
    """Draws the limit of every round."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def __call__(self) -> int:
        return self._random.randint(0, 12)


# --- the same text


def replies(model: edge_spec.TextModel, prompts: list[str]) -> list[tuple[Any, ...]]:
    with model:
        if model.identity != "bitwise":
            pytest.skip("on this device rows depend on how many are computed together")
        written = []
        for n, prompt in enumerate(prompts):
            for asked in ({"temperature": 0}, {"repeat_penalty": 1.2, "logit_bias": {261: -2.0}}):
                reply = model.generate(prompt, raw=n % 2 == 1, seed=n, max_tokens=32, **asked)
                written.append((reply.read(), tuple(reply.token_ids), reply.finish_reason))
        # Long enough to cross 256 cells, where llama.cpp changes its path.
        ends = dict.fromkeys(range(4), float("-inf"))
        reply = model.generate(prompts[0] * 9, raw=True, seed=1, max_tokens=240, temperature=1.0, logit_bias=ends)
        written.append((reply.read(), tuple(reply.token_ids), reply.finish_reason))
    return written


def test_the_demo_writes_the_same_text_in_every_mode(
    load: Callable[..., edge_spec.TextModel], prompts: list[str]
) -> None:
    plain = replies(load(speculation="off"), prompts[:3])
    assert len(plain[-1][1]) == 240
    for mode in [*MODES, "auto"]:
        assert replies(load(speculation=mode), prompts[:3]) == plain, mode
    for mode in ("tree", "hierarchy"):
        assert replies(load(speculation=mode, next_limit=Random()), prompts[:3]) == plain, f"{mode}, random limits"


def test_the_profile_says_what_rounds_and_not_how_it_speculates(load: Callable[..., edge_spec.TextModel]) -> None:
    names = set()
    for mode in ("off", "tree", "hierarchy"):
        with load(speculation=mode) as model:
            names.add(model.profile.name)
            assert model.mode == mode
    assert len(names) == 1
    for other in ({"n_ctx": 401}, {"kv_k": "f16"}):
        with load(DRAFTER, speculation="off", **other) as model:
            names.add(model.profile.name)
    with load(DRAFTER, speculation="off") as model:
        names.add(model.profile.name)
    assert len(names) == 4


def test_after_close_nothing_works(load: Callable[..., edge_spec.TextModel]) -> None:
    model = load(DRAFTER)
    model.close()
    model.close()
    with pytest.raises(Closed):
        model.generate("a")


# --- bad files


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def check(error: EdgeSpecError, path: Path) -> None:
    """One line that names the file and the next step."""
    assert path.name in str(error)
    assert error.hint
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", (NotAModel, TruncatedModel)),
        (b"Once upon a time there was a text.\n" * 99, (NotAModel,)),
        (random.Random(1).randbytes(50_000), (NotAModel,)),
        (b"GGUF" + random.Random(2).randbytes(50_000), (NotAModel, TruncatedModel, UnsupportedModel)),
        (b"PK\x03\x04" + bytes(1000), (NotAModel,)),
    ],
    ids=["empty", "text", "random bytes", "random GGUF", "zip"],
)
@pytest.mark.parametrize("role", ["model", "draft", "intermediate"])
def test_what_is_no_model_is_refused(
    load: Callable[..., Any], tmp_path: Path, role: str, content: bytes, expected: tuple[type[EdgeSpecError], ...]
) -> None:
    path = written(tmp_path / "bad.gguf", content)
    asked = {"model": path} if role == "model" else {role: path, "speculation": "hierarchy"}
    with pytest.raises(expected) as caught:
        load(**asked)
    check(caught.value, path)


def test_what_is_not_there_is_refused(load: Callable[..., Any], tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(ModelNotFound) as caught:
            load(path)
        check(caught.value, path)
        with pytest.raises(ModelNotFound):
            load(draft=path)
    with pytest.raises(ModelNotFound, match="demo"):
        load("no-such-family")


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.2, 0.5, 0.99, 0.999999])
def test_a_truncated_model_is_refused(load: Callable[..., Any], tmp_path: Path, share: float) -> None:
    whole = DRAFTER.read_bytes()
    path = written(tmp_path / "cut.gguf", whole[: int(len(whole) * share)])
    with pytest.raises(TruncatedModel) as caught:
        load(path)
    check(caught.value, path)


@pytest.mark.parametrize("name", [b"lamba", b"mamba", b"t5enc"], ids=lambda name: name.decode())
def test_an_architecture_that_cannot_be_run_is_refused(load: Callable[..., Any], tmp_path: Path, name: bytes) -> None:
    """The header stays sound; what it promises is unknown, or not what the file holds."""
    path = written(tmp_path / "other.gguf", DRAFTER.read_bytes().replace(b"llama", name))
    with pytest.raises(UnsupportedModel) as caught:
        load(path)
    check(caught.value, path)


def test_a_drafter_with_another_vocabulary_is_refused(load: Callable[..., Any], tmp_path: Path) -> None:
    whole = DRAFTER.read_bytes()
    word = "Ġthe".encode()
    assert word in whole
    path = written(tmp_path / "other.gguf", whole.replace(word, "Ġteh".encode(), 1))
    with pytest.raises(VocabularyMismatch) as caught:
        load(draft=path)
    check(caught.value, path)
    # What is not needed is not looked at.
    load(draft=path, speculation="ngram").close()


def test_the_process_survives_and_loads_a_good_model_after_bad_ones(load: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", DRAFTER.read_bytes()[:-1], DRAFTER.read_bytes().replace(b"llama", b"lamba")):
        with pytest.raises(EdgeSpecError):
            load(written(path, content))
    shutil.copy(DRAFTER, path)
    with load(path) as model:
        assert model.generate("A", max_tokens=4, raw=True).read()


# --- bad settings


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"n_ctx": 0}, SettingsError),
        ({"n_ctx": -5}, SettingsError),
        ({"n_ctx": 2_000_000_000}, OutOfMemory),
        ({"speculation": "magic"}, SettingsError),
        ({"draft_limit": -1, "speculation": "sequence"}, SettingsError),
        ({"kv_k": "q9"}, SettingsError),
        ({"n_treads": 2}, SettingsError),
        ({"model": DEMO.intermediate, "speculation": "tree"}, SettingsError),
        ({"model": DEMO.intermediate, "draft": DEMO.draft, "speculation": "hierarchy"}, SettingsError),
    ],
    ids=str,
)
def test_what_cannot_be_loaded_so_is_refused(
    load: Callable[..., Any], asked: dict[str, Any], error: type[EdgeSpecError]
) -> None:
    with pytest.raises(error) as caught:
        load(**asked)
    assert "\n" not in str(caught.value)


def test_a_prompt_longer_than_the_context_names_both_lengths(load: Callable[..., Any]) -> None:
    with load(DRAFTER, n_ctx=16) as model:
        with pytest.raises(PromptTooLong) as caught:
            model.generate("many words " * 30)
        assert caught.value.n_ctx == 16
        assert caught.value.n_prompt > 16
        reply = model.generate("A", raw=True)
        reply.read()
        assert len(reply.prompt) + len(reply.token_ids) <= 16


# --- what takes too long


@pytest.mark.parametrize("engine", ["onnx", "llama"])
def test_where_calibrating_takes_too_long_the_text_is_that_of_plain_decoding(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def written(limit_s: float, mode: str) -> tuple[str, list[int], list[str]]:
        monkeypatch.setattr("edge_spec.engines.probe_records._LIMIT_S", limit_s)
        options: dict[str, Any] = {"engine": engine, "n_ctx": 200, "n_threads": 1, "speculation": mode}
        with edge_spec.load("demo", cache_dir=tmp_path, on_wait=told.append, **options) as model:
            replies = [model.generate("Tell me a story.", seed=seed, max_tokens=40) for seed in (1, 2)]
            ids = [token for reply in replies for token in (reply.read(), reply.token_ids)[1]]
            assert model.identity == "bitwise"
            return model.mode, ids, [note for note in model.notes if "given up" in note]

    mode, cut, notes = written(1e-9, "auto")
    assert (mode, len(notes)) == ("off", 1)
    # What was cut short is not remembered; what came to its end is.
    for _ in range(2):
        mode, whole, notes = written(float("inf"), "auto")
        assert (mode != "off", whole, notes) == (True, cut, [])
    assert written(1e-9, "off") == ("off", cut, [])
    assert sum(sentence.startswith("calibrating") for sentence in told) == 2


# --- in event loops, and what programs show


def test_a_model_is_loaded_beside_an_event_loop(probe_cache: Path) -> None:
    told: list[tuple[str, int, int]] = []
    options: dict[str, Any] = {"cache_dir": probe_cache, "n_ctx": 400, "n_threads": 1, "engine": "llama"}

    async def write() -> tuple[int, str]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        async with edge_spec.aload("demo", on_progress=lambda *now: told.append(now), **options) as model:
            text = await model.generate("Tell me a story.", seed=3, max_tokens=20)
            seen = ticks
        ticking.cancel()
        with pytest.raises(Closed):
            model.generate("Tell me a story.")
        return seen, text

    ticks, text = asyncio.run(write())
    with edge_spec.load("demo", **options) as model:
        assert text == model.generate("Tell me a story.", seed=3, max_tokens=20).read()
        info = model.info
    assert ticks > 10
    assert {stage for stage, _, _ in told} - {"calibrating"} == {"loading"}
    assert ("loading", info.weight_bytes, info.weight_bytes) in told
    assert info.files == {"target": DEMO.target, "draft": DRAFTER, "intermediate": DEMO.intermediate}
    assert (info.name, info.title) == ("demo", inspect(DEMO.target).name)
    assert (info.n_ctx, info.n_ctx_train, info.quantization, info.engine) == (400, 1024, "Q4_0", "llama")
    assert json.loads(json.dumps(info.to_json()))["profile"] == model.profile.name
    assert repr(model) == f"<TextModel {info.name}, {info.profile}: n_ctx 400, speculation {info.speculation}, closed>"


def test_what_a_cancelled_task_loads_is_closed(probe_cache: Path) -> None:
    begun, opened = threading.Event(), []

    def on_progress(stage: str, done: int, total: int) -> None:
        begun.set()
        time.sleep(0.01)

    async def give_up() -> None:
        loading = edge_spec.aload("demo", cache_dir=probe_cache, n_ctx=400, engine="llama", on_progress=on_progress)
        opened.append(loading)
        task = asyncio.ensure_future(loading.__aenter__())
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = set(threading.enumerate())
    asyncio.run(give_up())
    # The thread that loads, and the watch on memory of a model that is open. Calibrating takes its time, once.
    for thread in set(threading.enumerate()) - before:
        thread.join(300)
    assert set(threading.enumerate()) == before


def test_what_progress_raises_ends_the_load(probe_cache: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edge_spec.load("demo", cache_dir=probe_cache, n_ctx=400, engine="llama", on_progress=stop)


def test_what_is_no_drafter_is_told_how_to_be_one(load: Callable[..., edge_spec.TextModel]) -> None:
    class Listing(edge_spec.Drafter):
        name = "listing"

        def draft(self, limit: int) -> Any:
            return [1] * limit

    with pytest.raises(SettingsError, match=r"must be the name of a mode, or a Mode; one of your own is Mode\("):
        load(speculation=Listing)
    mode = edge_spec.Mode(name="listing", build=lambda models: Listing(), limit=2)
    with load(speculation=mode) as model, pytest.raises(SettingsError, match="'listing' has drafted a list in place"):
        model.generate("A").read()


@pytest.mark.parametrize("name", ["off", "ngram", "sequence"])
def test_a_mode_of_ones_own_may_bear_any_name(load: Callable[..., edge_spec.TextModel], name: str) -> None:
    """Also where a limit is given, with which ``auto`` is replaced by the mode of its name."""
    limits: list[int] = []

    class Counting(edge_spec.Drafter):
        def draft(self, limit: int) -> edge_spec.Tree:
            limits.append(limit)
            return edge_spec.Tree((), ())

    with load(
        speculation=edge_spec.Mode(name=name, build=lambda models: Counting(), limit=3), next_limit=lambda: 2
    ) as model:
        model.generate("A", seed=1, max_tokens=4, ignore_eos=True).read()
    assert limits and max(limits) <= 2


def test_sources_that_are_found_before_what_was_installed_say_so(tmp_path: Path) -> None:
    """As in a checkout: the other folders are not inside of it."""
    away = shutil.ignore_patterns("models", "memory", "cli", "*.so")
    shutil.copytree(Path(edge_spec.__file__).parent, tmp_path / "edge_spec", ignore=away)
    code = (
        "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in repr(each).lower()];"
        "import edge_spec; edge_spec.load"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("ImportError: edge_spec is imported from its sources here")
