"""Laws of the small lines of the books: tables, bytes of tokens, copies of caches. All are bounded, all are shown."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge_spec
from edge_spec import ChatSession, TextModel
from edge_spec.controller.candidates import DRAFT_TABLES, TOKEN_BYTES
from edge_spec.engines.tokenizers import grammar_bytes
from edge_spec.errors import BudgetExceeded
from edge_spec.loading import plan
from edge_spec.memory import Ledger
from edge_spec.memory.pressure import PressureReading, PressureWatch
from edge_spec.speculation.drafters.ngram import NgramDrafter, table_bytes
from edge_spec.tokens.tokenizer import TOKEN_BYTES_LIMIT, TokenBytes

MIB = 1 << 20


@pytest.fixture
def load(probe_cache: Path) -> Callable[..., TextModel]:
    def of(**values: Any) -> TextModel:
        return edge_spec.load("demo", **{"n_ctx": 512, "n_threads": 1, "cache_dir": probe_cache, **values})

    return of


# --- what is bounded


@pytest.mark.parametrize("n_tokens", [0, 1, 100, 127, 128, 129, 1000, 4096, 5000])
@pytest.mark.parametrize("n_kinds", [2, 30_000])
def test_a_table_takes_what_was_said_and_no_more(n_tokens: int, n_kinds: int) -> None:
    drafter, rng = NgramDrafter(), random.Random(n_tokens)
    for _ in range(n_tokens):
        drafter.accept([rng.randrange(n_kinds)])
        assert drafter.held_bytes <= table_bytes(n_tokens)
    drafter.rollback(n_tokens // 2)
    assert drafter.held_bytes <= table_bytes(n_tokens)


@pytest.mark.parametrize("n_tokens", [256, 1000, 4096, 8192, 131_072])
def test_a_table_planned_for_a_context_remembers_all_of_it(n_tokens: int) -> None:
    phrase = [7, 8, 9, 10, 11]
    drafter = NgramDrafter(max_bytes=table_bytes(n_tokens))
    drafter.accept([*phrase, *range(100, 100 + n_tokens - 9), *phrase[:4]])
    assert drafter.draft(1).tokens == (11,)
    assert drafter.held_bytes <= table_bytes(n_tokens)


def test_a_table_that_is_full_forgets_the_older_half_and_continues() -> None:
    max_bytes = table_bytes(1000)
    drafter, phrase = NgramDrafter(max_bytes=max_bytes), [7, 8, 9, 10, 11]
    for token in range(100, 20_100):
        drafter.accept([token])
        assert drafter.held_bytes <= max_bytes
    assert drafter.draft(3).tokens == ()
    drafter.accept([*phrase, 1, 2, *phrase[:4]])
    assert drafter.draft(2).tokens == (11, 1)
    # What is rolled back further than it remembers is as good as new.
    drafter.rollback(50)
    assert drafter.draft(3).tokens == ()
    drafter.accept([*phrase, *phrase[:3]])
    assert drafter.draft(2).tokens == (10, 11)
    assert table_bytes(1 << 30) == 16 * MIB


@given(st.lists(st.integers(0, 400), max_size=300), st.integers(3000, 40_000))
def test_bytes_of_tokens_are_right_and_within_their_limit(tokens: list[int], max_bytes: int) -> None:
    asked: list[int] = []

    def read(token: int) -> bytes:
        asked.append(token)
        return b"x" * (token % 9)

    known = TokenBytes(max_bytes=max_bytes)
    for token in tokens:
        assert known.of(token, read) == b"x" * (token % 9)
        assert known.held_bytes <= max_bytes
    if tokens:
        n_asked = len(asked)
        known.of(tokens[-1], read)
        assert len(asked) == n_asked


# --- what is entered


def lines_of(model: TextModel) -> dict[str, Any]:
    return {line.name: line for line in model.ledger}


def test_tables_and_bytes_of_tokens_are_planned_and_measured(load: Callable[..., TextModel]) -> None:
    planned = plan("demo", memory="1GiB", speculation="ngram", n_ctx=512, n_threads=1).chosen
    with load(speculation="ngram") as model:
        before = lines_of(model)[DRAFT_TABLES].measured_bytes
        model.generate("Tell me a story.", seed=1, max_tokens=60, ignore_eos=True).read()
        lines = lines_of(model)
        for name, n_bytes in ((DRAFT_TABLES, table_bytes(512)), (TOKEN_BYTES, TOKEN_BYTES_LIMIT)):
            assert planned.tables[name] == lines[name].predicted_bytes == n_bytes
            assert 0 < lines[name].measured_bytes <= n_bytes
        assert lines[DRAFT_TABLES].measured_bytes > before
        report = {line["name"]: line for line in json.loads(json.dumps(model.ledger.report()))["lines"]}
        assert report[DRAFT_TABLES]["measured_bytes"] == lines[DRAFT_TABLES].measured_bytes
        assert TOKEN_BYTES in model.ledger.table()
        model.ledger.check_integrity()
    with load(speculation="sequence") as model:
        assert DRAFT_TABLES not in lines_of(model)


GRAMMARS_HELD = """
import gc, random
from edge_spec.engines.llama.external_vocabulary import ExternalVocabulary
from edge_spec.engines.llama.grammar import LlamaGrammar
from edge_spec.engines.tokenizers import grammar_bytes
from edge_spec.memory import usage
from edge_spec.sampling.grammar import Node

rng = random.Random(1)
words = {bytes(rng.choices(range(97, 123), k=rng.randint(3, 9))) for _ in range(70_000)}
pieces = [b"", *(bytes([n]) for n in range(256)), *sorted(words)]
class Tokenizer:
    eos, n_vocab = 0, len(pieces)
    token_bytes = pieces.__getitem__
    def tokenize(self, text, *, add_special): return []
    def ends(self, token): return token == 0

weights = ExternalVocabulary(Tokenizer())
weights.speaking
gc.collect()
before = usage().resident_bytes
grammars = []
for mark in "{([<":
    grammars.append(LlamaGrammar(weights, f'root ::= "{mark}" [^"]*'))
    place = Node(0, grammars[-1].start(), 0.0)
    for n in range(4):
        place = place.below(int(place.mask(weights.n_vocab).nonzero()[0][-1]))
print(usage().resident_bytes - before, grammar_bytes(weights.n_vocab))
"""


def test_grammars_take_what_is_planned_and_no_more() -> None:
    command = [sys.executable, "-c", GRAMMARS_HELD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    held, planned = map(int, done.stdout.split())
    assert planned / 4 < held <= planned


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_grammars_are_entered_with_the_first_and_gone_with_the_model(
    load: Callable[..., TextModel], engine: str
) -> None:
    with load(speculation="off", engine=engine) as model:
        held, ledger = model.ledger.held_bytes, model.ledger
        assert "grammars" not in lines_of(model)
        for word in ("yes", "no"):
            assert model.generate("Well?", grammar=f'root ::= "{word}"').read() == word
            assert lines_of(model)["grammars"].predicted_bytes == grammar_bytes(model.n_vocab)
            assert ledger.held_bytes == held + grammar_bytes(model.n_vocab)
        ledger.check_integrity()
    assert "grammars" not in {line.name for line in ledger}


def test_without_room_a_grammar_is_refused_and_the_next_reply_is_written(load: Callable[..., TextModel]) -> None:
    with load(speculation="off", memory="1GiB") as model:
        text = model.generate("Hello", seed=1, max_tokens=20).read()
        model.ledger.claim("test", "all but a little", (model.ledger.left_bytes or 0) - MIB)
        held = model.ledger.held_bytes
        with pytest.raises(BudgetExceeded, match="grammars") as refused:
            model.generate("Hello", grammar='root ::= "yes"')
        assert refused.value.needed_bytes == grammar_bytes(model.n_vocab)
        assert "grammars" not in lines_of(model)
        assert model.ledger.held_bytes == held
        assert model.generate("Hello", seed=1, max_tokens=20).read() == text
        model.ledger.release("test")
        assert model.generate("Hello", grammar='root ::= "yes"').read() == "yes"
        model.ledger.check_integrity()


@pytest.mark.parametrize("room", [True, False])
def test_a_table_comes_with_the_drafter_that_needs_it_and_goes_with_it(
    load: Callable[..., TextModel], room: bool
) -> None:
    now, available = [0.0], 150

    def clock() -> float:
        now[0] += 100.0
        return now[0]

    watch = PressureWatch(
        lambda: PressureReading(available_bytes=available), low_bytes=100, interval_s=0.0, clock=clock
    )
    with load(speculation="sequence", watch=watch) as model:
        text = model.generate("Hello", seed=1, max_tokens=20).read()
        held, ledger = model.ledger.held_bytes, model.ledger
        drafter = sum(line.predicted_bytes for line in ledger if line.owner == "draft")
        if not room:
            # Without room for a table nothing drafts, and the text is the same.
            ledger.budget_bytes = held + ledger.reserve_bytes - drafter
        available = 0
        model.check_memory()
        available = 150
        assert "draft" not in {line.owner for line in ledger}
        lines = lines_of(model)
        assert [lines[name].predicted_bytes for name in lines if name == DRAFT_TABLES] == [table_bytes(512)] * room
        assert model.drafter_name == ("auto" if room else "off")
        assert model.generate("Hello", seed=1, max_tokens=20).read() == text
        ledger.budget_bytes = None
        available = 1 << 40
        for _ in range(4):
            model.check_memory()
        assert DRAFT_TABLES not in lines_of(model)
        assert ledger.held_bytes == held
        ledger.check_integrity()


# --- what is lent


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_copies_made_while_a_conversation_is_saved_are_claimed_for_as_long(
    load: Callable[..., TextModel], engine: str, tmp_path: Path
) -> None:
    with load(engine=engine) as model:
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
        # To suspend a conversation is to copy its caches as well.
        model.generate("Hello", seed=1, max_tokens=2).read()
        assert lines_of(model)["suspended"].measured_bytes == lines_of(model)["suspended"].predicted_bytes
        model.ledger.check_integrity()


def test_where_there_is_no_room_for_copies_the_text_is_saved(load: Callable[..., TextModel], tmp_path: Path) -> None:
    said: list[str] = []
    with load() as model:
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
    load: Callable[..., TextModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "talk.chat", list[str]()
    with load(speculation="off") as model:
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
        assert again not in model.sessions.cache
        assert "read again" in said[-1]
        model.ledger.check_integrity()


def test_what_comes_back_from_the_disk_is_claimed_for_as_long(
    load: Callable[..., TextModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(speculation="off") as model:
        session = model.chat(seed=1, max_tokens=20)
        session.send("Hello!").read()
        model.generate("Hello", seed=1, max_tokens=2).read()
        laid = lines_of(model)["suspended"].predicted_bytes
        model.sessions.cache.to_disk(True)
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


def test_several_can_borrow_under_one_name(load: Callable[..., TextModel]) -> None:
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
