"""Laws of conversations: drafts, other sessions, saving and interruptions never change what is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_world import LETTERS, N_VOCAB, chat_model, chat_table
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_spec import TextModel
from edge_spec.chat import ChatSession
from edge_spec.errors import EdgeSpecError
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.testing import TableModel, random_table

pytestmark = pytest.mark.long

WORDS = st.text(LETTERS, min_size=1, max_size=30)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), WORDS, st.sampled_from([None, 1, 5, 12])),
        st.tuples(st.just("send"), WORDS, st.just(None)),
        st.tuples(st.just("stopped"), WORDS, st.sampled_from(LETTERS)),
        st.tuples(st.just("retry")),
        st.tuples(st.just("continue")),
        st.tuples(st.just("undo")),
        st.tuples(st.just("edit"), WORDS),
        st.tuples(st.just("system"), st.one_of(st.none(), WORDS)),
        st.tuples(st.just("other"), WORDS),
        st.tuples(st.just("alone"), WORDS),
        st.tuples(st.just("save")),
        st.tuples(st.just("drop"), WORDS),
    ),
    min_size=3,
    max_size=14,
)

DRAFTERS = ("chain", "tree", "ngram", "hierarchy")


def drafter_of(kind: str, table: Any, seed: int, **model: Any) -> Drafter:
    def small(scale: float) -> TableModel:
        return TableModel(random_table(N_VOCAB, order=table.ndim - 1, seed=seed + 1, scale=scale, like=table), **model)

    if kind == "ngram":
        return NgramDrafter()
    if kind == "hierarchy":
        return HierarchyDrafter(ModelDrafter(small(1.0), width=2, depth=2), small(0.3))
    return ModelDrafter(small(0.5), width=1 if kind == "chain" else 3) if kind != "off" else NoDrafter()


def story(
    make: Callable[[], TextModel], actions: list[tuple[Any, ...]], folder: Path, values: dict[str, Any]
) -> list[Any]:
    """Everything that a person would see of a conversation; it continues in another program whenever it is saved."""
    seen: list[Any] = []
    model = make()
    session = model.chat("abba", on_notice=seen.append, **values)
    other = model.chat(seed=9)
    for number, (verb, *rest) in enumerate(actions):
        if verb == "save":
            path = folder / f"{number}.chat"
            session.save(path)
            session.close()
            model = make()
            session = ChatSession.load(model, path, on_notice=seen.append)
        try:
            if verb == "send":
                seen.append(list(session.send(rest[0], max_tokens=rest[1]))[-1:] and session.messages[-1])
            elif verb == "stopped":
                seen.append(session.send(rest[0], stop=rest[1], max_tokens=20).read())
            elif verb == "retry":
                session.retry().read()
            elif verb == "continue":
                session.continue_answer().read()
            elif verb == "undo":
                session.undo()
            elif verb == "edit":
                session.edit(rest[0]).read()
            elif verb == "system":
                session.set_system(rest[0])
            elif verb == "other":
                seen.append(other.send(rest[0], max_tokens=7).read())
            elif verb == "alone":
                seen.append(model.generate(rest[0], raw=True, seed=1, max_tokens=5).read())
            elif verb == "drop":
                # Nobody reads it: a reply that is dropped has been cancelled.
                session.send(rest[0])
        except EdgeSpecError as error:
            seen.append(type(error))
        seen.append((session.messages, session.n_tokens, session.n_seen))
    return seen


@settings(max_examples=60)
@given(
    actions=ACTIONS,
    seed=st.integers(0, 1 << 16),
    kind=st.sampled_from(DRAFTERS),
    n_ctx=st.sampled_from([24, 40, 64, 1000]),
    can_shift=st.booleans(),
    keeps_branches=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_conversations_are_the_same_with_every_drafter(
    actions: list[tuple[Any, ...]],
    seed: int,
    kind: str,
    n_ctx: int,
    can_shift: bool,
    keeps_branches: bool,
    temperature: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = chat_table(seed, end=-1.0)
    values = {"seed": seed, "temperature": temperature}
    facts = {"n_ctx": n_ctx, "can_shift": can_shift, "keeps_branches": keeps_branches}
    folder = tmp_path_factory.mktemp("chats")
    plain, drafted = (
        story(
            lambda each=each: chat_model(table, drafter_of(each, table, seed, n_ctx=n_ctx), **facts),  # type: ignore[misc]
            actions,
            folder,
            values,
        )
        for each in ("off", kind)
    )
    assert drafted == plain


@settings(max_examples=40)
@given(actions=ACTIONS, seed=st.integers(0, 1 << 16), n_ctx=st.sampled_from([40, 1000]))
def test_neither_saving_nor_other_conversations_change_what_is_said(
    actions: list[tuple[Any, ...]], seed: int, n_ctx: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = chat_table(seed, end=-1.0)
    undisturbed = [action for action in actions if action[0] not in ("other", "alone", "save")]
    folder = tmp_path_factory.mktemp("chats")

    def states(told: list[tuple[Any, ...]]) -> list[Any]:
        seen = story(lambda: chat_model(table, n_ctx=n_ctx), told, folder, {"seed": seed})
        return [state for state in seen if isinstance(state, tuple)]

    after = zip(states(actions), actions, strict=True)
    assert [state for state, action in after if action in undisturbed] == states(undisturbed)


@pytest.mark.parametrize("mode", ["off", "sequence"])
def test_a_window_that_moves_changes_no_answer_that_waits_meanwhile(load: Callable[..., TextModel], mode: str) -> None:
    model, notices = load(speculation=mode, n_ctx=128), list[str]()
    values = {"max_tokens": 40, "temperature": 1.0, "ignore_eos": True}
    alone = model.chat(seed=2).send("Tell me a story.", **values)
    alone.read()
    long = model.chat(seed=1, on_notice=notices.append)
    # The second turn stays when the first one goes: cells are moved, not emptied.
    for n in (50, 20):
        long.send("Why is the sky blue?", max_tokens=n, ignore_eos=True).read()
    beside = model.chat(seed=2).send("Tell me a story.", **values)
    next(beside)
    assert len(beside.token_ids) < 40 and not notices
    long.send("Hi!", max_tokens=1).read()
    assert len(beside.token_ids) < 40 and "the context is full" in notices[0]
    beside.read()
    assert beside.token_ids == alone.token_ids


@settings(max_examples=60)
@given(words=st.lists(WORDS, min_size=1, max_size=30), seed=st.integers(0, 1 << 16), n_ctx=st.sampled_from([24, 40]))
def test_a_conversation_of_any_length_stays_inside_the_context(words: list[str], seed: int, n_ctx: int) -> None:
    notices: list[str] = []
    model = chat_model(chat_table(seed, end=-2.0), n_ctx=n_ctx)
    session = model.chat("ab", seed=seed, on_notice=notices.append)
    forgotten = 0
    for word in words:
        session.send(word[: n_ctx // 2], max_tokens=n_ctx).read()
        assert session.n_seen <= n_ctx
        assert (session.n_tokens - session.n_seen > forgotten) == bool(notices)
        forgotten = session.n_tokens - session.n_seen
        notices.clear()
    assert [message.content for message in session.messages if message.role == "user"] == [
        word[: n_ctx // 2] for word in words
    ]


def test_a_retry_is_another_draw_and_an_undone_retry_is_the_first_one() -> None:
    def session() -> ChatSession:
        return chat_model(chat_table(3, end=-3.0), n_ctx=200).chat(seed=1, max_tokens=20)

    one = session()
    first = one.send("abc").read()
    second = one.retry().read()
    assert second != first
    assert one.messages[-1].attempt == 1
    assert [message.role for message in one.messages] == ["user", "assistant"]
    one.undo()
    assert one.messages == ()
    assert one.send("abc").read() == first


def test_a_continued_answer_is_the_answer_that_was_never_cut() -> None:
    model = chat_model(chat_table(5, end=-4.0), n_ctx=400)
    whole = model.chat(seed=2, max_tokens=40)
    whole.send("ab").read()
    cut = model.chat(seed=2, max_tokens=15)
    cut.send("ab").read()
    cut.continue_answer().read()
    cut.continue_answer(max_tokens=10).read()
    assert replace(cut.messages[-1], finish_reason="") == replace(whole.messages[-1], finish_reason="")


@settings(max_examples=40)
@given(words=st.lists(WORDS, min_size=1, max_size=12), seed=st.integers(0, 1 << 16), can_shift=st.booleans())
def test_a_model_that_looks_back_two_tokens_does_not_notice_the_window(
    words: list[str], seed: int, can_shift: bool
) -> None:
    def converse(n_ctx: int) -> list[str]:
        model = chat_model(chat_table(seed, end=-2.0), NgramDrafter(), n_ctx=n_ctx, can_shift=can_shift)
        session = model.chat("ab", seed=seed, max_tokens=50)
        return [session.send(word[:12]).read() for word in words]

    assert converse(32) == converse(1000)


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("kind", ["off", *DRAFTERS])
def test_a_conversation_that_changes_programs_after_every_turn_is_the_same(
    kind: str, can_shift: bool, tmp_path: Path
) -> None:
    table = chat_table(7, end=-1.0)

    def messages(*between: tuple[str]) -> Any:
        def make() -> TextModel:
            drafter = drafter_of(kind, table, 7, n_ctx=48)
            return chat_model(table, drafter, n_ctx=48, can_shift=can_shift, keeps_branches=False)

        return story(make, [("send", "abcab", 12), *between] * 12, tmp_path, {"seed": 3})[-1]

    assert messages(("save",)) == messages()


def test_what_was_undone_has_never_been() -> None:
    n_finished: Counter[bool] = Counter()

    @settings(max_examples=40)
    @given(
        words=st.lists(st.tuples(WORDS, st.sampled_from([None, "a", "b"])), min_size=1, max_size=6),
        seed=st.integers(0, 1 << 16),
        n_undone=st.integers(1, 3),
    )
    def compare(words: list[tuple[str, str | None]], seed: int, n_undone: int) -> None:
        def converse(more: int) -> ChatSession:
            session = chat_model(chat_table(seed, end=-2.0), n_ctx=2000).chat("ab", seed=seed, max_tokens=12)
            for word, stop in [*words, *[("dcba", "c")] * more]:
                session.send(word, stop=stop).read()
            for _ in range(more):
                session.undo()
            return session

        short, long = converse(0), converse(n_undone)
        assert long.messages == short.messages
        is_finished = short.messages[-1].is_finished
        n_finished[is_finished] += 1
        if not is_finished:
            assert long.continue_answer().read() == short.continue_answer().read()
        assert long.retry().read() == short.retry().read()
        assert long.send("abcd").read() == short.send("abcd").read()

    compare()
    assert min(n_finished[True], n_finished[False]) > 5
