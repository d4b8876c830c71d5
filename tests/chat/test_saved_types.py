"""Laws of the types of caches: a conversation goes on in those that it was saved with, unless the user gives others."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import edge_spec
from edge_spec.chat import ChatSession
from edge_spec.chat.saving import saved_profile
from edge_spec.cli.chat import command
from edge_spec.engines.onnx.kernels import available
from edge_spec.loading import plan

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(available() is not None, reason="the kernels were not built"),
]

ASKED = ("Hello!", "Tell me a story about two cats.", "And then?")
OTHERS = {"onnx": ("f32", "f32"), "llama": ("q8_0", "q8_0")}
"""Types that are not an engine's usual ones."""


@pytest.fixture
def asked(probe_cache: Path) -> dict[str, Any]:
    return {"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, "speculation": "sequence"}


@pytest.fixture(params=OTHERS)
def saved(request: pytest.FixtureRequest, asked: dict[str, Any], tmp_path: Path) -> tuple[Path, str, list[int]]:
    """A conversation in a file, its engine, and what the model that saved it writes next."""
    keys, values = OTHERS[request.param]
    with edge_spec.load("demo", engine=request.param, kv_k=keys, kv_v=values, **asked) as model:
        session = model.chat(seed=4, max_tokens=60)
        for question in ASKED[:-1]:
            session.send(question).read()
        session.save(tmp_path / "talk.chat")
        return tmp_path / "talk.chat", request.param, answered(session)


def answered(session: ChatSession) -> list[int]:
    reply = session.send(ASKED[-1])
    reply.read()
    return reply.token_ids


def test_a_conversation_goes_on_in_the_types_that_it_was_saved_with(
    saved: tuple[Path, str, list[int]], asked: dict[str, Any]
) -> None:
    path, engine, expected = saved
    notices: list[str] = []
    with edge_spec.load("demo", engine=engine, session=path, **asked) as model:
        assert dict(model.profile.facts)["kv"] == "/".join(OTHERS[engine])
        assert answered(ChatSession.load(model, path, on_notice=notices.append)) == expected
    assert not notices


def test_types_that_are_given_stay_and_a_notice_names_those_of_the_file(
    saved: tuple[Path, str, list[int]], asked: dict[str, Any]
) -> None:
    path, engine, _ = saved
    kinds, notices = {"kv_k": "f16", "kv_v": "f16"}, list[str]()
    with edge_spec.load("demo", engine=engine, session=path, **kinds, **asked) as model:
        assert dict(model.profile.facts)["kv"] == "f16/f16"
        reply = ChatSession.load(model, path, on_notice=notices.append).send(ASKED[-1])
        assert reply.identity == "rounding"
        reply.close()
    (notice,) = notices
    keys, values = OTHERS[engine]
    assert f"cached as {keys}/{values} instead of f16/f16" in notice
    assert f"`kv_k={keys!r}, kv_v={values!r}` would avoid that" in notice


def test_types_of_a_file_give_way_where_memory_is_short(asked: dict[str, Any], tmp_path: Path) -> None:
    path, asked = tmp_path / "talk.chat", {**asked, "engine": "onnx", "speculation": "off", "n_ctx": 1024}
    with edge_spec.load("demo", kv_k="f32", kv_v="f32", **asked) as model:
        model.chat(seed=1).save(path)
    whole = plan("demo", session=path, memory="1GiB", held_bytes=60 << 20, **asked)
    assert (whole.chosen.kv, whole.notes) == (("f32", "f32"), ())
    least = whole.chosen.needed_bytes - (1 << 20)
    smaller = plan("demo", session=path, memory=least, held_bytes=60 << 20, prefill_chunk=512, max_rows=16, **asked)
    assert smaller.chosen.kv == ("f16", "f16")
    assert any("keys are cached as f16 instead of f32 to fit" in note for note in smaller.notes)


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command in a pipe: returns the answers to some lines."""
    monkeypatch.setattr("edge_spec.cli.chat.user_data_path", lambda name: tmp_path)
    options = ["demo", "--engine", "onnx", "--ctx", "512", "--threads", "1", "--seed", "4", "-n", "60"]

    def answers(lines: Sequence[str], *more: str) -> str:
        done = CliRunner().invoke(command, [*options, *more], input="".join(f"{line}\n" for line in lines))
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    return answers


@pytest.fixture
def talk(chat: Callable[..., str], tmp_path: Path) -> Path:
    """A conversation with caches of f32, which is the last one without a name."""
    (tmp_path / "conversations").mkdir()
    path = tmp_path / "conversations" / "talk.chat"
    chat(ASKED[:-1], "--kv", "f32", "--session", str(path))
    return path


@pytest.mark.parametrize("how", ["--session", "--resume", "/load"])
def test_the_command_goes_on_in_the_types_of_the_file(
    how: str, chat: Callable[..., str], talk: Path, tmp_path: Path
) -> None:
    copy = shutil.copy(talk, tmp_path / "copy.chat")
    expected = chat(ASKED[-1:], "--kv", "f32", "--session", str(copy))
    if how == "/load":
        # It is saved there from now on.
        seen = chat(["Hi", f"/load {talk}", *ASKED[-1:]], "--session", str(tmp_path / "other.chat"))
        assert seen.endswith(f"\n\n{expected}")
    else:
        assert chat(ASKED[-1:], *([how, str(talk)] if how == "--session" else [how])) == expected
    assert saved_profile(talk)["kv"] == "f32/f32"


@pytest.mark.parametrize("how", ["--session", "/load"])
def test_types_that_the_command_was_given_stay(how: str, chat: Callable[..., str], talk: Path, tmp_path: Path) -> None:
    if how == "/load":
        chat([f"/load {talk}", *ASKED[-1:]], "--session", str(tmp_path / "other.chat"), "--kv", "f16")
    else:
        chat(ASKED[-1:], how, str(talk), "--kv", "f16")
    assert saved_profile(talk)["kv"] == "f16/f16"


@pytest.fixture(scope="module")
def record(probe_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a conversation that was saved with caches of f32."""
    path = tmp_path_factory.mktemp("saved") / "talk.chat"
    kinds = {"kv_k": "f32", "kv_v": "f32", "speculation": "off"}
    with edge_spec.load("demo", engine="onnx", n_ctx=256, n_threads=1, cache_dir=probe_cache, **kinds) as model:
        model.chat(seed=1).save(path)
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read("conversation.json")))


def planned_for(record: Any, path: Path, asked: dict[str, Any]) -> tuple[str, str]:
    """Return the types that are planned to go on with a file that holds this record."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversation.json", json.dumps(record))
    return plan("demo", engine="onnx", session=path, **asked).chosen.kv


@pytest.mark.parametrize(
    "kv", ["f32", "f32/f99", "q8_0/q8_0", "/", "f32/f32/f32", "", 5, None, ["f32", "f32"]], ids=str
)
def test_types_that_cannot_be_change_nothing(
    record: dict[str, Any], kv: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    assert planned_for(record, tmp_path / "a", asked) == ("f32", "f32")
    of_other_types = {**record, "profile": {**record["profile"], "kv": kv}}
    assert planned_for(of_other_types, tmp_path / "b", asked) == ("f16", "f16")


@pytest.mark.parametrize("changed", [{"engine": "llama"}, {"file": "another"}], ids=str)
def test_types_of_another_engine_or_model_change_nothing(
    record: dict[str, Any], changed: dict[str, str], asked: dict[str, Any], tmp_path: Path
) -> None:
    of_another = {**record, "profile": {**record["profile"], **changed}}
    assert planned_for(of_another, tmp_path / "a", asked) == ("f16", "f16")


def test_a_file_that_is_no_conversation_changes_nothing(
    record: dict[str, Any], asked: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 99)
    for path in (tmp_path / "junk", tmp_path / "not there", tmp_path):
        assert plan("demo", engine="onnx", session=path, **asked).chosen.kv == ("f16", "f16")
    for odd in (3, [], {}, {**record, "profile": 3}, {**record, "profile": {}}):
        assert planned_for(odd, tmp_path / "odd", asked) == ("f16", "f16")
