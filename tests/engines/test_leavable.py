"""Laws of calls that nothing can stop: whoever waits may leave, and what was left takes nothing with it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import wait_until

import edge_spec
from edge_spec.errors import Cancelled, StillBusy
from edge_spec.llama_cpp import grammar, leavable
from edge_spec.llama_cpp.leavable import LeavableCalls
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import resolve_family
from edge_spec.sampling.grammar import never


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls wait for that do not end."""
    event = threading.Event()
    yield event
    event.set()


def always() -> bool:
    return True


def test_a_call_returns_and_raises_what_its_work_does() -> None:
    calls = LeavableCalls("tests")
    threads = {calls.call(threading.get_ident, never) for _ in range(20)}
    assert len(threads) == 1 and threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, never)
    # It need not be wanted any more if it is there.
    assert calls.call(lambda: 7, always) == 7
    calls.close()


def test_calls_from_several_threads_do_not_wait_for_each_other() -> None:
    calls, both = LeavableCalls("tests"), threading.Barrier(2)
    other = threading.Thread(target=calls.call, args=(both.wait, never))
    other.start()
    calls.call(both.wait, never)
    other.join()


def test_who_does_not_want_it_any_more_leaves_and_others_go_on(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leavable, "_PATIENCE_S", 0.01)
    calls, freed = LeavableCalls("tests"), threading.Event()
    calls.when_free(freed.set)
    assert freed.is_set()
    freed.clear()
    for n in (1, 2):
        calls.require_room()
        with pytest.raises(Cancelled):
            calls.call(gate.wait, always)
        assert (calls.n_left, calls.call(lambda: "free", never)) == (n, "free")
    with pytest.raises(StillBusy, match="tests that nobody waits for any more keep the processor busy; try again"):
        calls.require_room()
    assert not calls.has_room
    calls.when_free(freed.set)
    assert not freed.is_set()
    gate.set()
    assert freed.wait(10) and calls.n_left == 0
    calls.require_room()


def test_its_threads_end_with_it(gate: threading.Event) -> None:
    before = set(threading.enumerate())
    calls = LeavableCalls("tests")
    calls.call(lambda: None, never)
    with pytest.raises(Cancelled):
        calls.call(gate.wait, always)
    gate.set()
    dropped = weakref.ref(calls)
    wait_until(lambda: (found := dropped()) is not None and found.n_left == 0)
    del calls
    assert dropped() is None
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_weights_are_freed_when_a_grammar_that_was_left_has_ended(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LlamaWeights(resolve_family("demo").target, vocab_only=True)
    freed: list[object] = []
    monkeypatch.setattr(found._c, "llama_model_free", freed.append)
    state = grammar.LlamaGrammar(found, 'root ::= "yes"').start(always)
    monkeypatch.setattr(grammar._State, "_allowed", lambda self, tokens: gate.wait())
    with pytest.raises(Cancelled):
        state.allowed([1])
    found.close()
    assert not freed
    gate.set()
    wait_until(lambda: len(freed) == 1)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("ended_by", ["timeout", "cancelled"])
def test_the_end_of_a_reply_is_the_end_of_its_grammar(
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    probe_cache: Path,
    ended_by: str,
    n: int,
) -> None:
    """Whatever its grammar is busy with, the model is free for the next reply."""
    with edge_spec.load("demo", n_threads=1, n_ctx=256, cache_dir=probe_cache) as model:
        advanced: Callable[..., object] = grammar._State._advanced
        begun = threading.Event()

        def endless(state: object, token: int) -> object:
            begun.set()
            gate.wait()
            return advanced(state, token)

        with monkeypatch.context() as patched:
            patched.setattr(grammar._State, "_advanced", endless)
            timeout = 0.2 if ended_by == "timeout" else None
            replies = model.generate("Hello", n=n, grammar='root ::= "yes" | "no"', timeout=timeout)
            if ended_by == "cancelled":
                threading.Thread(target=lambda: begun.wait() and replies.cancel()).start()
            replies.read()
            assert {answer.finish_reason for answer in replies.answers} == {ended_by}
        assert model.generate("Hello", max_tokens=4, seed=1).read()
        assert model.generate("Hello", grammar='root ::= "yes" | "no"').read() in ("yes", "no")
        gate.set()


@pytest.mark.parametrize("mode", ["off", "hierarchy"])
def test_wherever_a_grammar_is_left_the_next_reply_is_the_same(
    mode: str, monkeypatch: pytest.MonkeyPatch, probe_cache: Path
) -> None:
    """What was written stays, each token of it is told, and the models' caches hold what they say."""
    asked: dict[str, Any] = {"grammar": r'root ::= "[" [a-z]+ (", " [a-z]+)* "]"', "seed": 3, "max_tokens": 24}
    with edge_spec.load("demo", speculation=mode, n_threads=1, n_ctx=256, cache_dir=probe_cache) as model:
        whole = model.generate("Name some animals.", **asked).read()
        call, n_calls = LeavableCalls.call, 0

        def leave(calls: LeavableCalls, work: Callable[[], Any], is_over: Callable[[], bool]) -> Any:
            nonlocal n_calls
            n_calls -= 1
            if not n_calls:
                raise Cancelled
            return call(calls, work, is_over)

        monkeypatch.setattr(LeavableCalls, "call", leave)
        n_left = 0
        for place in range(1, 200, 3):
            n_calls = place
            reply = model.generate("Name some animals.", **asked)
            told = "".join(event.text for event in reply.events())
            assert told == reply.text and whole.startswith(reply.text)
            if reply.finish_reason == "length":
                assert told == whole
                break
            n_left += 1
            n_calls = 0
            assert model.generate("Name some animals.", **asked).read() == whole
        assert n_left > 10
