"""Laws of sessions on the demo family: long talks, taking turns, files, threads."""

from __future__ import annotations

import asyncio
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_world import chat_model, chat_table

import edge_spec
from edge_spec import TextModel
from edge_spec.chat import ChatSession, Message
from edge_spec.chat.saving import to_json, to_markdown
from edge_spec.errors import Closed, PromptError, PromptTooLong, SettingsError, StateError
from edge_spec.generation.text_stream import Thinking

ASKED = (
    "Hello, who are you?",
    "Tell me a story about a dog.",
    "And then?",
    "I would like to book a table for two.",
    "Where is it?",
    "Zwölf Boxkämpfer — 東京 🙂",
    "Say it again, please.",
    "Thank you!",
)


@pytest.fixture(scope="module")
def load(probe_cache: Path) -> Iterator[Callable[..., TextModel]]:
    opened: dict[Any, TextModel] = {}

    def of(**values: Any) -> TextModel:
        key = tuple(sorted(values.items()))
        if key not in opened:
            values = {"n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache, "engine": "llama"} | values
            opened[key] = edge_spec.load("demo", **values)
        return opened[key]

    yield of
    for model in opened.values():
        model.close()


def talk(model: TextModel, n: int, **values: Any) -> list[Any]:
    """What is said in a talk of ``n`` turns, and what is announced."""
    seen: list[Any] = []
    session = model.chat("You are a friend.", on_notice=seen.append, **{"seed": 4, "max_tokens": 40, **values})
    for turn in range(n):
        session.send(ASKED[turn % len(ASKED)]).read()
    session.close()
    return [*seen, *session.messages]


@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_long_talks_are_the_same_with_every_drafter(
    load: Callable[..., TextModel], engine: str, temperature: float
) -> None:
    plain = talk(load(speculation="off", engine=engine), 14, temperature=temperature)
    assert sum("the context is full" in str(seen) for seen in plain) >= 2
    for mode in ("ngram", "sequence", "tree", "hierarchy", "auto"):
        assert talk(load(speculation=mode, engine=engine), 14, temperature=temperature) == plain, mode


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_sessions_take_turns_without_changing_each_other(load: Callable[..., TextModel], engine: str) -> None:
    model = load(speculation="hierarchy", engine=engine)
    alone = [talk(model, 4, seed=seed) for seed in (1, 2)]
    sessions = [model.chat("You are a friend.", seed=seed, max_tokens=40) for seed in (1, 2)]
    for turn in range(4):
        for session in sessions:
            session.send(ASKED[turn]).read()
        model.generate("Something else.", seed=1, max_tokens=5).read()
    assert [list(session.messages) for session in sessions] == alone
    assert model.session_cache_bytes > 0


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_loaded_session_goes_on_as_if_it_had_never_been_away(
    load: Callable[..., TextModel], engine: str, tmp_path: Path
) -> None:
    model = load(speculation="sequence", engine=engine, n_ctx=1024)
    whole = talk(model, 6)
    for cut in (1, 3, 5):
        notices: list[str] = []
        session = model.chat("You are a friend.", seed=4, max_tokens=40)
        for turn in range(cut):
            session.send(ASKED[turn]).read()
        session.save(tmp_path / "talk")
        session.close()
        model.generate("Something else.", seed=1, max_tokens=5).read()
        again = ChatSession.load(model, tmp_path / "talk", on_notice=notices.append)
        for turn in range(cut, 6):
            again.send(ASKED[turn]).read()
        assert list(again.messages) == whole
        assert not notices


def test_what_was_read_is_not_read_again(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off", n_ctx=1024)
    read: list[int] = []
    target: Any = model.followed["target"].model
    prefill = target.prefill
    session = model.chat(seed=1, max_tokens=20)
    try:
        target.prefill = lambda tokens: (read.append(len(tokens)), prefill(tokens))[1]  # type: ignore[method-assign]
        for text in ASKED[:5]:
            before = session.n_tokens
            read.clear()
            reply = session.send(text)
            new = len(reply.prompt) - before
            reply.read()
            # The last token of the answer before was drawn and not read yet.
            assert sum(read) == new - 1 + (before > 0)
    finally:
        target.prefill = prefill  # type: ignore[method-assign]


# --- files


def saved(model: TextModel, path: Path) -> ChatSession:
    session = model.chat("Be kind.", seed=2, max_tokens=12, logit_bias={5: -1.5}, stop=["zzz"])
    session.send("Hello!").read()
    session.send("And now?").read()
    session.save(path)
    return session


def test_a_file_holds_messages_settings_and_window(load: Callable[..., TextModel], tmp_path: Path) -> None:
    model = load(speculation="ngram")
    session = saved(model, tmp_path / "a")
    again = ChatSession.load(model, tmp_path / "a")
    assert again.to_json() == session.to_json()
    assert again.options == session.options


def test_damaged_files_are_refused_or_read_again(load: Callable[..., TextModel], tmp_path: Path) -> None:
    model = load(speculation="sequence")
    session = saved(model, tmp_path / "good")
    raw = (tmp_path / "good").read_bytes()
    outcomes = set()
    for place in range(0, len(raw), max(1, len(raw) // 150)):
        notices: list[str] = []
        (tmp_path / "bad").write_bytes(raw[:place] + bytes([raw[place] ^ 0x41]) + raw[place + 1 :])
        try:
            again = ChatSession.load(model, tmp_path / "bad", on_notice=notices.append)
        except StateError:
            outcomes.add("refused")
            continue
        assert again.messages == session.messages
        outcomes.add("read again" if notices else "whole")
    for length in (0, 1, 100, len(raw) // 2, len(raw) - 1):
        (tmp_path / "bad").write_bytes(raw[:length])
        with pytest.raises(StateError):
            ChatSession.load(model, tmp_path / "bad")
    assert {"refused", "read again"} <= outcomes


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"format": "x"},
        {"messages": 5},
        {"messages": [{"role": "user"}]},
        {"tokens": [1 << 40]},
        {"tokens": "abc"},
        {"turns": [[1, 2]]},
        {"options": {"temperature": -1}},
        {"options": {"nonsense": 1}},
        {"profile": 3},
        {"cached": [-5]},
        {"head": 10**9},
        {"turns": [{"n_messages": 1, "start": 10**9, "kept": 0, "rest": [], "seen_from": 0}]},
        {"seen_from": "x"},
        {"seen_from": -1},
    ],
)
def test_files_that_say_something_impossible_are_refused(
    load: Callable[..., TextModel], tmp_path: Path, change: dict[str, Any]
) -> None:
    model = load(speculation="ngram")
    saved(model, tmp_path / "good")
    with zipfile.ZipFile(tmp_path / "good") as archive, zipfile.ZipFile(tmp_path / "bad", "w") as bad:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "conversation.json":
                content = json.dumps(json.loads(content) | change).encode()
            bad.writestr(name, content)
    with pytest.raises(StateError):
        ChatSession.load(model, tmp_path / "bad")


def test_another_model_or_profile_reads_the_text_again(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = saved(load(speculation="ngram"), tmp_path / "a")
    for other in (load(speculation="ngram", n_ctx=300), load(speculation="ngram", engine="onnx")):
        notices: list[str] = []
        again = ChatSession.load(other, tmp_path / "a", on_notice=notices.append)
        assert again.messages == session.messages
        assert ["other settings" in notice for notice in notices] == [True]
        again.send("Go on.").read()
    notices = []
    with pytest.raises(StateError):
        ChatSession.load(chat_model(chat_table(), n_ctx=500), tmp_path / "a", on_notice=notices.append)


def test_a_failed_save_leaves_the_old_file(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = saved(load(speculation="off"), tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(OSError):
        session.save(tmp_path / "no such folder" / "a")
    session._options["unwritable"] = object()
    with pytest.raises(TypeError):
        session.save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_transcripts_read_well() -> None:
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="user", content="Hi"),
        Message(role="assistant", content="<think>\nHm.\nWell.\n</think>\n\nHello", finish_reason="eos"),
        Message(role="user", content="More"),
        Message(role="assistant", content="So", finish_reason="length"),
    ]
    assert to_markdown(messages) == (
        "## System\n\nBe kind.\n\n## You\n\nHi\n\n## Assistant\n\nHello\n\n## You\n\nMore\n\n## Assistant\n\nSo …\n"
    )
    assert "> Hm.\n> Well.\n\nHello" in to_markdown(messages, thoughts=True)
    assert [Message.from_json(message) for message in json.loads(to_json(messages))["messages"]] == messages


# --- threads


def test_an_answer_in_progress_is_protected(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = load(speculation="sequence").chat(seed=1, max_tokens=30)
    reply = session.send("Tell me a story.")
    next(reply)
    for forbidden in (
        lambda: session.send("x"),
        session.retry,
        session.undo,
        session.clear,
        session.continue_answer,
        lambda: session.edit("x"),
        lambda: session.save(tmp_path / "x"),
        lambda: session.set_system("x"),
    ):
        with pytest.raises(SettingsError):
            forbidden()
    reply.close()
    assert session.messages[-1].finish_reason == "cancelled"
    assert session.messages[-1].content == reply.content
    session.continue_answer().read()
    assert session.messages[-1].is_finished or session.messages[-1].finish_reason == "length"


def test_two_threads_talk_on_one_model(load: Callable[..., TextModel]) -> None:
    model = load(speculation="sequence")
    alone = [talk(model, 3, seed=seed) for seed in (1, 2)]
    found: dict[int, list[Any]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: talk(model, 3, seed=n + 1)})) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[n] for n in range(2)] == alone


def test_closing_the_model_ends_an_answer_that_another_thread_writes() -> None:
    model = chat_model(chat_table(end=-20.0), n_ctx=1 << 16)
    session = model.chat(seed=1)
    begun = threading.Event()
    thread = threading.Thread(target=lambda: session.send("ab").read(lambda piece: begun.set()))
    thread.start()
    assert begun.wait(20)
    model.close()
    thread.join(20)
    assert not thread.is_alive()
    assert session.messages[-1].finish_reason == "cancelled"
    with pytest.raises(Closed):
        session.send("ab")


def test_a_cancelled_task_cancels_its_answer(load: Callable[..., TextModel]) -> None:
    model = load(speculation="sequence")
    session = model.chat(seed=1, max_tokens=200, ignore_eos=True)

    async def listen(begun: asyncio.Event) -> None:
        async for _ in session.send("Tell me a long story."):
            begun.set()

    async def both() -> str:
        begun = asyncio.Event()
        task = asyncio.create_task(listen(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.messages[-1].finish_reason == "cancelled"
        return "".join([piece async for piece in session.continue_answer(max_tokens=10)])

    assert asyncio.run(both())
    assert session.messages[-1].finish_reason == "length"


def test_more_async_answers_than_threads_in_a_pool_all_come(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off")

    async def say(seed: int) -> str:
        return "".join([piece async for piece in model.chat(seed=seed, max_tokens=5).send("Hello!")])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(say(seed) for seed in range(40)))

    assert asyncio.run(all_of_them()) == [
        model.chat(seed=seed, max_tokens=5).send("Hello!").read() for seed in range(40)
    ]


# --- bad input


def test_bad_input_changes_nothing(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off")
    session = model.chat(seed=1, max_tokens=8)
    session.send("Hello!").read()
    before = session.to_json()
    for error, bad in (
        (PromptError, lambda: session.send("  ")),
        (SettingsError, lambda: session.send("x", temperature=-1)),
        (SettingsError, lambda: session.send("x", nonsense=1)),
        (SettingsError, lambda: session.set(top_p=7)),
        (SettingsError, lambda: session.set(nonsense=7)),
        (PromptError, lambda: session.send("\ud800")),
        (PromptError, lambda: session.edit("\ud800")),
        (PromptError, lambda: session.set_system("\ud800")),
        (PromptTooLong, lambda: (session.set_system("word " * 300), session.send("x"))),
    ):
        with pytest.raises(error):
            bad()  # type: ignore[no-untyped-call]
        if error is not PromptTooLong:
            assert session.to_json() == before
    with pytest.raises(SettingsError):
        model.chat().retry()
    with pytest.raises(SettingsError):
        model.chat().undo()
    with pytest.raises(SettingsError):
        model.chat(max_tokens=0).send("x")
    with pytest.raises(PromptError):
        model.chat(messages=[{"role": "king", "content": "x"}])


@pytest.mark.parametrize("cuts", [(1,), (3, 5, 7), (100,), (2, 2, 2, 2, 2, 2, 2, 2)])
def test_thoughts_are_told_from_answers_however_they_are_cut(cuts: tuple[int, ...]) -> None:
    def parts(text: str, before: str = "") -> tuple[str, str]:
        thinking, place, found = Thinking(before), 0, []
        for number in range(len(text)):
            size = cuts[number % len(cuts)]
            found += thinking.push(text[place : place + size])
            place += size
        found += thinking.finish()
        return tuple("".join(part for is_thought, part in found if is_thought == wanted) for wanted in (True, False))  # type: ignore[return-value]

    assert parts("<think>Hm < so</think>\n\nYes <b>") == ("Hm < so", "Yes <b>")
    assert parts(" <think>open") == ("open", "")
    assert parts("so</think>Yes", "<think>\n") == ("so", "Yes")
    assert parts("plain <think>no</think>") == ("", "plain <think>no</think>")
    assert parts("more", "<think>a</think>b") == ("", "more")
