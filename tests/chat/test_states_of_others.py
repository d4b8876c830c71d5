"""Laws of caches and states in a file of a conversation that are those of another model, size or kind: such a file is
continued as if there were none in it.

They are sealed as this model's own, as no program writes them: what is between the seal and the cells is tried here.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hybrid_files import ONLY_LETTERS, HybridFiles

import edge_spec
from edge_spec import ChatSession, TextModel
from edge_spec.engines.onnx.kernels import available
from edge_spec.models import resolve_family
from edge_spec.speculation.cache_state import pack_state, unpack_state

pytestmark = pytest.mark.long

N_CTX = 160
KINDS = [
    pytest.param(
        engine, name, marks=pytest.mark.skipif(engine == "onnx" and available() is not None, reason="no kernels")
    )
    for engine, names in (("onnx", ("demo", "lfm2", "qwen35")), ("llama", ("demo", "lfm2", "qwen35", "nemotron_h")))
    for name in names
]


@pytest.fixture(scope="module")
def opened(hybrids: HybridFiles, probe_cache: Path) -> Iterator[Callable[..., TextModel]]:
    """Models by name, loaded when first asked for."""
    loaded: dict[str, TextModel] = {}

    def load(name: str, **options: Any) -> TextModel:
        key = f"{name} {options}"
        if key not in loaded:
            path = resolve_family("demo").target if name == "demo" else hybrids[name]
            given: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "speculation": "off", "cache_dir": probe_cache}
            loaded[key] = edge_spec.load(path, **{**given, **options})
        return loaded[key]

    yield load
    for each in loaded.values():
        each.close()


def saved(model: TextModel, path: Path) -> dict[str, bytes]:
    """Save a conversation of two turns; what is in its file, by name."""
    session = model.chat(seed=3, max_tokens=12, ignore_eos=True, logit_bias=ONLY_LETTERS)
    for question in ("Tell me a story.", "Why?"):
        session.send(question).read()
    session.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in content.items():
            archive.writestr(name, each)
    return path


def went_on(model: TextModel, path: Path) -> list[int]:
    reply = ChatSession.load(model, path).send("And then?")
    reply.read()
    return list(reply.token_ids)


def bodies(opened: Callable[..., TextModel], engine: str, name: str, folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bodies of states by whose they are, and how many tokens they say they are of."""

    def of(other: str, **options: Any) -> tuple[bytes, int]:
        model = opened(other, **options)
        content = saved(model, folder / "other.chat")
        return unpack_state(content["caches/target"], profile=model.profile.name, n_ctx=1 << 20)

    body, n = of(name, engine=engine)
    others = [other for other in ("demo", "lfm2", "qwen35") if other != name]
    engines = {"onnx": "llama", "llama": "onnx"}
    found = {f"{other}, another model": of(other, engine=engine) for other in others}
    found["another context"] = of(name, engine=engine, n_ctx=2 * N_CTX)
    found["caches of another type"] = of(name, engine=engine, kv_k="f16", kv_v="f16")
    if name != "nemotron_h":
        found["another engine"] = of(name, engine=engines[engine])
    found |= {
        "cut": (body[:-1], n),
        "without states": (body[: len(body) // 2], n),
        "nothing": (b"", n),
        "twice": (body + body, n),
        "more": (body + bytes(64), n),
        "as few tokens": (body, 1),
        "as no tokens": (body, 0),
        "as many tokens": (body, N_CTX),
        "as too many tokens": (body, 1 << 40),
    }
    return found


@pytest.mark.parametrize(("engine", "name"), KINDS)
def test_states_of_another_model_or_size_are_as_if_there_were_none(
    opened: Callable[..., TextModel], tmp_path: Path, engine: str, name: str
) -> None:
    model = opened(name, engine=engine)
    content = saved(model, tmp_path / "good.chat")
    kept = went_on(model, tmp_path / "good.chat")
    record = json.loads(content["conversation.json"])
    record["cached"] = []
    read = went_on(model, written(tmp_path / "read.chat", {"conversation.json": json.dumps(record).encode()}))
    assert len(kept) == len(read) == 12
    for what, (body, n_past) in bodies(opened, engine, name, tmp_path).items():
        sealed = pack_state(body, n_past=n_past, profile=model.profile.name)
        bad = written(tmp_path / "bad.chat", {**content, "caches/target": sealed})
        # What is another context's has the same cells, and may be used.
        assert went_on(model, bad) in ([kept, read] if what == "another context" else [read]), what


@pytest.mark.parametrize(("engine", "name"), KINDS)
def test_what_is_no_state_is_as_if_there_were_none(
    opened: Callable[..., TextModel], tmp_path: Path, engine: str, name: str
) -> None:
    """Of another version of the seal, cut, changed, or under another name."""
    model = opened(name, engine=engine)
    content = saved(model, tmp_path / "good.chat")
    state = content["caches/target"]
    record = json.loads(content["conversation.json"])
    record["cached"] = []
    read = went_on(model, written(tmp_path / "read.chat", {"conversation.json": json.dumps(record).encode()}))
    changed = {"version": b"edgekv00" + state[8:], "cut": state[: len(state) // 2], "byte": state[:-1] + b"\xaa"}
    for what, each in {**changed, "nothing": b""}.items():
        assert went_on(model, written(tmp_path / "bad.chat", {**content, "caches/target": each})) == read, what
    renamed = {key: each for key, each in content.items() if key != "caches/target"} | {"caches/draft": state}
    assert went_on(model, written(tmp_path / "bad.chat", renamed)) == read
