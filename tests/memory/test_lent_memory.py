"""Laws of memory that is lent: copies of caches are claimed for as long as they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_lines import lines_of

from edge_spec import ChatSession, TextModel
from edge_spec.errors import BudgetExceeded
from edge_spec.memory import Ledger


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_copies_made_while_a_conversation_is_saved_are_claimed_for_as_long(
    load_demo: Callable[..., TextModel], engine: str, tmp_path: Path
) -> None:
    with load_demo(engine=engine, **{"kv_k": "f16"} if engine == "llama" else {}) as model:
        session = model.chat("You are a friend.", seed=1, max_tokens=30)
        session.send("Hello!").read()
        held = model.ledger.held_bytes
        session.save(tmp_path / "talk.chat")
        assert model.ledger.held_bytes == held
        (line,) = model.ledger.lent
        assert line.measured_bytes is not None
        assert 0 < line.measured_bytes <= line.predicted_bytes
        assert "copies to save, returned" in model.ledger.table()
        assert model.ledger.report()["lent"][0]["measured_bytes"] == line.measured_bytes
        model.generate("Hello", seed=1, max_tokens=2).read()
        if engine == "llama":
            # With these caches it holds one text. To suspend a conversation is to copy its caches as well.
            assert lines_of(model)["suspended"].measured_bytes == lines_of(model)["suspended"].predicted_bytes
        model.ledger.check_integrity()


def test_where_there_is_no_room_for_copies_the_text_is_saved(
    load_demo: Callable[..., TextModel], tmp_path: Path
) -> None:
    said: list[str] = []
    with load_demo() as model:
        session = model.chat(seed=1, max_tokens=30, on_notice=said.append)
        session.send("Hello!").read()
        left = model.ledger.left_bytes
        assert left is not None
        model.ledger.claim("test", "all there is", left)
        session.save(tmp_path / "talk.chat")
        assert "no room" in said[-1]
        assert model.ledger.lent == ()
        again = ChatSession.load(model, tmp_path / "talk.chat")
        assert again.messages == session.messages
        model.ledger.check_integrity()


def test_caches_come_from_a_file_within_the_budget_or_not_at_all(
    load_demo: Callable[..., TextModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "talk.chat", list[str]()
    with load_demo(speculation="off") as model:
        session = model.chat(seed=1, max_tokens=30)
        session.send("Hello!").read()
        session.save(path)
        session.close()
        ChatSession.load(model, path, on_notice=said.append)
        assert not said
        (line,) = (line for line in model.ledger.lent if line.name == "caches from a file")
        left, n_bytes = model.ledger.left_bytes, line.predicted_bytes
        assert left is not None
        model.ledger.claim("test", "nearly all there is", left - n_bytes + 1)
        monkeypatch.setattr("edge_spec.chat.saving._content", lambda archive, entry: pytest.fail("was read"))
        again = ChatSession.load(model, path, on_notice=said.append)
        assert again.messages == session.messages
        assert again not in model.prefix_cache
        assert "read again" in said[-1]
        model.ledger.check_integrity()


@pytest.mark.long
def test_what_comes_back_from_the_disk_is_claimed_for_as_long(
    load_demo: Callable[..., TextModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With these caches llama.cpp holds one text.
    with load_demo(speculation="off", engine="llama", kv_k="f16") as model:
        session = model.chat(seed=1, max_tokens=20)
        session.send("Hello!").read()
        model.generate("Hello", seed=1, max_tokens=2).read()
        laid = lines_of(model)["suspended"].predicted_bytes
        model.prefix_cache.to_disk(True)
        assert "suspended" not in lines_of(model)
        held: list[int] = []
        target = model.followed["target"].model
        restore = target.restore

        def watched(state: bytes) -> None:
            held.append(lines_of(model)["back from the disk"].predicted_bytes)
            restore(state)

        monkeypatch.setattr(target, "restore", watched)
        session.save(tmp_path / "talk.chat")
        assert "back from the disk" in {line.name for line in model.ledger.lent}
        # It stayed where it was.
        reply = session.send("And then?")
        reply.read()
        assert held == [laid]
        assert not reply.notices
        assert "back from the disk" not in lines_of(model)
        # Where there is no room for it, the text is read again.
        model.generate("Hello", seed=1, max_tokens=2).read()
        left = model.ledger.left_bytes
        assert left is not None
        model.ledger.claim("test", "nearly all there is", left - laid + 1)
        reply = session.send("And then?")
        reply.read()
        assert held == [laid]
        assert "read again" in reply.notices[-1]
        model.ledger.check_integrity()


def test_several_can_borrow_under_one_name(load_demo: Callable[..., TextModel]) -> None:
    ledger, both = Ledger(1000), threading.Barrier(2, timeout=60)

    def borrow(n_bytes: int) -> None:
        with ledger.lend("sessions", "copies", n_bytes) as took:
            took(n_bytes // 2)
            both.wait()
            assert ledger.held_bytes == 700
            both.wait()

    threads = [threading.Thread(target=borrow, args=(n_bytes,)) for n_bytes in (300, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.held_bytes, tuple(ledger)) == (0, ())
    (line,) = ledger.lent
    assert (line.predicted_bytes, line.measured_bytes) == (400, 200)
    with pytest.raises(BudgetExceeded), ledger.lend("sessions", "copies", 1001):
        raise AssertionError
    ledger.check_integrity()
