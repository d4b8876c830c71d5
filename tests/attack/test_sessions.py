"""Laws of files of conversations: whatever is in one, or in its place, it takes no memory and destroys nothing."""

from __future__ import annotations

import json
import os
import resource
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from chat_world import chat_model, chat_table
from mutations import Mutations

from edge_spec import TextModel
from edge_spec.chat import ChatSession
from edge_spec.chat.saving import _MEMORY_PER_BYTE
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.errors import BackendError, EdgeSpecError, StateError
from edge_spec.memory import Ledger
from edge_spec.models.beside import write_whole
from edge_spec.speculation.cache_state import pack_state, unpack_state
from edge_spec.speculation.tree import Tree


def world() -> TextModel:
    return chat_model(chat_table(end=1.0), n_ctx=200)


def saved(model: TextModel, path: Path) -> Path:
    session = model.chat(seed=2, max_tokens=12)
    session.send("abc").read()
    session.save(path)
    return path


def test_a_text_that_would_not_fit_the_budget_is_not_read(tmp_path: Path) -> None:
    model = world()
    model.ledger = Ledger(budget_bytes=300 << 20)
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversation.json", b"[" + b"{}," * (15 << 20) + b"{}]")
    assert (tmp_path / "bomb").stat().st_size < 300_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StateError, match="bomb is too large"):
        ChatSession.load(model, tmp_path / "bomb")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.long
@pytest.mark.parametrize(
    "value", ["{}", '{"a":1}', '{"":{}}', "[[]]", '""', "1.5", "[0]", 200 * '{"":' + "0" + 200 * "}"]
)
def test_no_json_takes_more_memory_than_is_lent_for_it(value: str) -> None:
    def footprint(found: object) -> int:
        """The parser makes every short text and small number once."""
        below = [*found.values()] if isinstance(found, dict) else found if isinstance(found, list) else []
        return (found.__sizeof__() + 16 if below or found in ([], {}) else 24) + sum(map(footprint, below))

    text = "[" + ",".join([value] * 10_000) + "]"
    assert footprint(json.loads(text)) < _MEMORY_PER_BYTE * len(text)


def test_what_is_no_file_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    model = world()
    session = model.chat(seed=1)
    for path in (tmp_path / "pipe", Path("/dev/full"), Path("/dev/zero"), Path("/dev/null"), tmp_path):
        kind = stat.S_IFMT(path.stat().st_mode)
        with pytest.raises(OSError, match=r"regular file|directory"):
            ChatSession.load(model, path)
        with pytest.raises(OSError, match=r"regular file|directory") as refused:
            session.save(path)
        assert refused.value.filename == str(path)
        assert stat.S_IFMT(path.stat().st_mode) == kind


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    model = world()
    real = saved(model, tmp_path / "there" / "talk")
    (tmp_path / "link").symlink_to(real)
    session = ChatSession.load(model, tmp_path / "link")
    session.send("bc").read()
    session.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert ChatSession.load(model, real).messages == session.messages
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(OSError, match="circle"):
        write_whole(tmp_path / "circle", lambda name: None)
    assert (tmp_path / "circle").is_symlink()


def test_a_place_before_the_file_is_damage(tmp_path: Path) -> None:
    """Of the table of contents, and of what it names."""
    model = world()
    raw = saved(model, tmp_path / "good").read_bytes()
    end, first = raw.rindex(b"PK\5\6"), raw.index(b"PK\1\2")
    for place, value in ((end + 16, 2**32 - 2), (end + 12, 2**31), (first + 42, 2**32 - 2), (first + 42, 2**31)):
        (tmp_path / "bad").write_bytes(raw[:place] + struct.pack("<I", value) + raw[place + 4 :])
        with pytest.raises(StateError, match="bad is damaged"):
            ChatSession.load(model, tmp_path / "bad")


def test_conversations_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    model = world()
    session = model.chat(seed=1, max_tokens=4)
    session.send("abc").read()
    keeper = Autosave(None, folder=tmp_path / "conversations", on_notice=pytest.fail)
    keeper.save(session)
    assert keeper.path is not None
    assert [stat.S_IMODE(path.stat().st_mode) for path in (keeper.path, keeper.path.parent)] == [0o600, 0o700]


@pytest.mark.long
def test_states_of_llama_cpp_that_were_changed_and_sealed_again_are_refused_or_work(
    open_demo: Callable[..., LlamaPath],
) -> None:
    model = open_demo(n_ctx=256, fresh=True)
    model.prefill(list(range(300, 324)))
    body, n = unpack_state(model.save(), profile=model.profile.name, n_ctx=256)
    outcomes = {"refused": 0, "works": 0}
    for seed in range(400):
        mutations = Mutations(seed)
        n_past = mutations.random.choice([n, n, n, 0, n - 1, n + 1, 256])
        state = pack_state(mutations.of_bytes(body, most=12 * n), n_past=n_past, profile=model.profile.name)
        try:
            model.restore(state)
            outcomes["works"] += 1
        except StateError:
            outcomes["refused"] += 1
        with suppress(BackendError):  # once
            model.rollback(min(model.n_past, mutations.random.randrange(250)))
            model.prefill([7])
        model.decode(Tree.sequence([5]))
        model.keep([0])
    assert min(outcomes.values()) > 20


@pytest.mark.long
def test_a_conversation_with_any_value_changed_is_refused_or_continues(tmp_path: Path) -> None:
    model = world()
    raw = saved(model, tmp_path / "good").read_bytes()
    with zipfile.ZipFile(tmp_path / "good") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    outcomes = {"refused": 0, "continues": 0}
    for seed in range(1500):
        mutations = Mutations(seed)
        if seed % 3:
            record = mutations.of_json(json.loads(content["conversation.json"]))
            with zipfile.ZipFile(tmp_path / "bad", "w") as bad:
                for name, each in content.items():
                    bad.writestr(name, json.dumps(record) if name == "conversation.json" else each)
        else:
            (tmp_path / "bad").write_bytes(mutations.of_bytes(raw))
        try:
            again = ChatSession.load(model, tmp_path / "bad")
            again.send("cab", max_tokens=2).read()
            outcomes["continues"] += 1
        except EdgeSpecError as error:
            assert "\n" not in str(error), seed
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50
