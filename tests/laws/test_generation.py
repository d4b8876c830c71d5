"""Laws of a reply: characters whole, stop strings unseen, books that add up, and an end that leaves no trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculator_replies import reply_of
from watched_table import watch

from edge_spec.errors import PromptError, PromptTooLong, SettingsError
from edge_spec.generation.reply import Reply
from edge_spec.generation.text_stream import TextStream
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.testing import TableModel, random_table

LettersType = Callable[..., Any]
TABLE = random_table(6, order=1, seed=2, scale=1.0)


# --- from bytes to text


def stream(stop: tuple[str, ...], pieces: list[bytes]) -> tuple[list[str], str, bool]:
    text = TextStream(stop)
    shown = [text.push(piece) for piece in pieces]
    return shown, text.finish(), text.stopped


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


mostly_text = st.lists(
    st.one_of(st.text(max_size=4).map(str.encode), st.binary(max_size=3), st.sampled_from(["ü🙂東".encode()])),
    max_size=6,
).map(b"".join)


@given(mostly_text, st.lists(st.integers(0, 40), max_size=6))
def test_utf8_is_never_torn(data: bytes, cuts: list[int]) -> None:
    shown, rest, _ = stream((), pieces_of(data, cuts))
    assert "".join(shown) + rest == without_a_begun_character(data).decode("utf-8", "replace")


_BEGUN = {
    chr(code).encode()[:n]
    for code in (*range(0x80, 0xD800, 64), *range(0xE000, 0x110000, 64))
    for n in range(1, len(chr(code).encode()))
}


def without_a_begun_character(data: bytes) -> bytes:
    return next((data[:-n] for n in (3, 2, 1) if data[-n:] in _BEGUN), data)


@given(st.text(max_size=6), st.sampled_from(["é", "東", "🙂"]), st.integers(1, 3), st.sampled_from([(), ("x",)]))
def test_a_text_that_ends_within_a_character_ends_before_it(
    text: str, last: str, n: int, stop: tuple[str, ...]
) -> None:
    text = text.replace("x", "")
    data, end = text.encode() + last.encode()[:n], last if n >= len(last.encode()) else ""
    shown, rest, _ = stream(stop, pieces_of(data, [*range(len(data))]))
    assert "".join(shown) + rest == text + end
    # What goes on shows it.
    shown, rest, _ = stream(stop, [data, last.encode()[n:], b"!"])
    assert "".join(shown) + rest == text + last + "!"


@given(st.text(max_size=12), st.lists(st.integers(0, 40), max_size=6))
def test_whole_characters_are_shown_at_once(text: str, cuts: list[int]) -> None:
    stream = TextStream()
    read, shown = b"", ""
    for piece in pieces_of(text.encode(), cuts):
        read += piece
        shown += stream.push(piece)
        assert shown == read.decode("utf-8", "ignore")
    assert stream.finish() == ""


letters = st.text(alphabet="abü", max_size=14)


@given(letters, st.text(alphabet="abü", min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=8))
def test_a_stop_string_ends_the_text_however_it_is_split(text: str, stop: str, cuts: list[int]) -> None:
    shown, rest, stopped = stream((stop,), pieces_of(text.encode(), cuts))
    assert "".join(shown) + rest == text.split(stop)[0]
    assert stopped == (stop in text)


@given(letters, st.lists(st.text(alphabet="abü", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 30)))
def test_nothing_of_a_stop_string_leaks(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, rest, stopped = stream(tuple(stops), pieces_of(text.encode(), cuts))
    seen = "".join(shown) + rest
    assert text.startswith(seen)
    assert not any(stop in seen for stop in stops)
    assert stopped == any(stop in text for stop in stops)
    if stopped:
        assert any(text[len(seen) :].startswith(stop) for stop in stops)
    else:
        assert seen == text


def test_what_might_begin_a_stop_string_is_held_and_released() -> None:
    text = TextStream(["abc"])
    assert [text.push(piece) for piece in (b"xa", b"b", b"ab", b"d")] == ["x", "", "ab", "abd"]
    assert (text.push(b"\xc3"), text.push(b"a"), text.finish()) == ("", "\ufffd", "a")


# --- how it ends


def reply(
    letters: LettersType, *, end: int = -1, limit: int = 4, drafts: bool = True, **values: Any
) -> tuple[Reply, Slot]:
    """A reply of a table model whose drafter is always right."""
    n_ctx = values.pop("n_ctx", 1000)
    drafter = ModelDrafter(TableModel(TABLE, n_ctx=n_ctx)) if drafts else NoDrafter()
    speculator = Slot(TableModel(TABLE, n_ctx=n_ctx), drafter)
    sampling = SamplerSettings(seed=values.pop("seed", 0), temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    prompt = values.pop("prompt", [1])
    return reply_of(speculator, lambda: limit, letters(end), prompt, sampling, **values), speculator


@pytest.mark.parametrize("limit", [0, 4])
def test_every_end_has_its_reason(letters: LettersType, limit: int) -> None:
    for values, reason in (
        ({"max_tokens": 7}, "length"),
        ({"n_ctx": 20}, "context"),
        ({"end": 4}, "eos"),
        ({"stop": ("ba",)}, "stop"),
    ):
        done, _ = reply(letters, limit=limit, **values)
        assert done.finish_reason is None
        text = done.read()
        assert done.finish_reason == reason
        assert text == done.text
        assert "ba" not in text or reason != "stop"
        if reason == "length":
            assert len(done.token_ids) == 7
        elif reason == "context":
            assert len(done.token_ids) == 19
        elif reason == "eos":
            assert done.token_ids.index(4) == len(done.token_ids) - 1
        assert next(done, None) is None and "".join(done) == text


@pytest.mark.long
@given(st.data())
@settings(max_examples=200)
def test_what_follows_the_end_in_a_draft_leaves_no_trace(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    written = case.generation()
    written.read()
    text = [*case.prompt, *written.token_ids]
    speculator = case.last
    assert case.end not in written.token_ids[:-1]
    assert speculator.text == text
    assert speculator.model.n_past < len(text)
    assert speculator.model.cells == tuple(text[: speculator.model.n_past])
    assert not speculator.model.pending
    speculator.drafter.save()
    for followed in speculator.followed.values():
        # What an intermediate model wrote beyond the end may stay, as a guess.
        assert followed.text.tokens[: len(text)] == text


@pytest.mark.long
@given(st.data())
@settings(max_examples=200)
def test_the_statistics_add_up(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    written = data.draw(cases).generation()
    written.read()
    books = written.statistics
    assert books.prompt_tokens == len(written.prompt)
    assert books.tokens == len(written.token_ids)
    assert sum(books.lengths.values()) == books.rounds
    assert sum(n * times for n, times in books.lengths.items()) == books.tokens
    # Every round writes a token that was not drafted, but for one that ends the reply on a draft.
    assert books.accepted - (books.tokens - books.rounds) in (0, 1)
    assert books.accepted == sum(books.accepted_at.values())
    assert books.accepted <= books.drafted
    assert sum(books.drafted_at.values()) <= books.drafted
    for depth in books.accepted_at:
        assert books.accepted_at[depth] <= books.drafted_at[depth]
    assert all(0 <= share <= 1 for share in books.acceptance_by_position)
    shown = books.speculation()
    assert shown["accepted_lengths"] == {str(n): times for n, times in sorted(books.lengths.items())}
    assert shown["mean_accepted_length"] == (books.tokens / books.rounds if books.rounds else 0)
    assert all(seconds >= 0 for seconds in books.timings().values())


def test_an_end_inside_a_draft_is_found(letters: LettersType) -> None:
    """A drafter that is always right drafts beyond the end, so the case does occur."""
    inside = 0
    for seed in range(40):
        done, speculator = reply(letters, end=4, seed=seed, limit=6)
        done.read()
        assert done.statistics.tokens == len(done.token_ids)
        assert done.statistics.accepted == done.statistics.drafted, "nothing below the end counts as rejected"
        inside += len(done.token_ids) % 7 != 0
        assert speculator.model.cells == (1, *done.token_ids)[: speculator.model.n_past]
    assert inside > 20


def test_the_same_prompt_gets_the_same_reply_after_others(letters: LettersType) -> None:
    table = random_table(6, order=1, seed=2, scale=1.0)
    for drafter in (NoDrafter(), ModelDrafter(TableModel(table), width=3)):
        speculator = Slot(TableModel(table), drafter)

        def write(prompt: list[int], speculator: Slot = speculator) -> list[int]:
            sampling = SamplerSettings(seed=5, repeat_penalty=1.2)
            done = reply_of(speculator, lambda: 4, letters(), prompt, sampling, max_tokens=30)
            done.read()
            return done.token_ids

        first = write([1, 2, 3])
        others = [write(prompt) for prompt in ([1, 2, 3, 4], [2], [1, 2], [1, 2, 3, *first[:9]])]
        assert write([1, 2, 3]) == first
        assert len({tuple(other) for other in others}) == len(others)


# --- stopping it


@pytest.mark.parametrize("drafts", [False, True])
def test_cancel_stops_a_reply_and_keeps_what_was_written(letters: LettersType, drafts: bool) -> None:
    done, speculator = reply(letters, drafts=drafts)
    whole = reply(letters, drafts=drafts, max_tokens=60)[0].read()
    first = next(done) + next(done)
    done.cancel()
    rest = done.read()[len(first) :]
    assert done.finish_reason == "cancelled"
    assert whole.startswith(first + rest)
    assert done.statistics.tokens == len(done.token_ids)
    # The next reply is not the one that was cancelled.
    after = reply_of(speculator, lambda: 4, letters(), [1], done.settings, max_tokens=60)
    assert after.read() == whole
    assert after.finish_reason == "length"


def test_cancel_before_the_first_piece_writes_nothing(letters: LettersType) -> None:
    for stop in (Reply.cancel, Reply.close):
        done, _ = reply(letters)
        stop(done)
        assert done.read() == ""
        assert done.finish_reason == "cancelled"
        assert done.token_ids == []


def test_cancel_of_a_finished_reply_changes_nothing(letters: LettersType) -> None:
    done, speculator = reply(letters, max_tokens=5)
    done.read()
    done.cancel()
    done.close()
    assert done.finish_reason == "length"
    after = reply_of(speculator, lambda: 0, letters(), [1], done.settings, max_tokens=5)
    assert after.read() == done.text


def test_cancel_from_another_thread_stops_a_decode(letters: LettersType) -> None:
    def wait(parts: Any, is_decode: bool) -> None:
        """Wait in a decode until it is cancelled."""
        if is_decode and slow.n_past > 5:
            inside.set()
            assert cancelled.wait(20)

    def go_on() -> None:
        cancel()
        cancelled.set()

    inside, cancelled = threading.Event(), threading.Event()
    slow = TableModel(TABLE)
    cancel = slow.pool.cancel
    watch(slow, wait)
    slow.pool.cancel = go_on  # type: ignore[method-assign]
    speculator = Slot(slow, NoDrafter())
    done = reply_of(speculator, lambda: 0, letters(), [1], SamplerSettings(), max_tokens=50)
    thread = threading.Thread(target=done.read)
    thread.start()
    assert inside.wait(20)
    done.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert done.finish_reason == "cancelled"
    assert len(done.token_ids) == 6


def test_an_error_ends_the_reply_and_leaves_the_text_whole(letters: LettersType) -> None:
    def breaks(parts: Any, is_decode: bool) -> None:
        if is_decode and broken.n_past > 5:
            raise MemoryError

    broken = TableModel(TABLE)
    watch(broken, breaks)
    speculator = Slot(broken, NoDrafter())
    done = reply_of(speculator, lambda: 0, letters(), [1], SamplerSettings(), max_tokens=50)
    with pytest.raises(MemoryError):
        done.read()
    assert done.finish_reason == "error"
    assert speculator.text == [1, *done.token_ids]


# --- what is asked for


def test_what_cannot_be_written_is_refused_before_anything_is(letters: LettersType) -> None:
    for values, error in (
        ({"prompt": []}, PromptError),
        ({"prompt": [1] * 20, "n_ctx": 20}, PromptTooLong),
        ({"max_tokens": 0}, SettingsError),
        ({"stop": ("x", "")}, SettingsError),
    ):
        with pytest.raises(error):
            reply(letters, **values)
    done, _ = reply(letters, prompt=[1] * 19, n_ctx=20)
    done.read()
    assert len(done.token_ids) == 1
