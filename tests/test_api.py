"""Laws of the Python interface: one reply at a time, clear errors, and nothing that outlives its model."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from letters import LetterTokenizer
from watched_table import watch

from edge_spec import Reply, TextModel, errors
from edge_spec.controller.options import LoadOptions
from edge_spec.errors import Closed, EdgeSpecError, PromptError, PromptTooLong, Sentence, SettingsError
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

TABLE = random_table(5, order=1, seed=2, scale=1.0)


class Gated(TableModel):
    """Stops in its decode, once its text is long enough, until the gate opens."""

    def __init__(self, table: Logits, *, stop_at: int = 1 << 30) -> None:
        super().__init__(table, n_ctx=400)
        self.stop_at = stop_at
        self.reached, self.gate = threading.Event(), threading.Event()
        self._cancel = self.pool.cancel
        watch(self, self._wait)
        self.pool.cancel = self._open  # type: ignore[method-assign]

    def _wait(self, parts: Any, is_decode: bool) -> None:
        if is_decode and self.n_past >= self.stop_at:
            self.reached.set()
            assert self.gate.wait(20)

    def _open(self) -> None:
        self._cancel()
        self.gate.set()


def text_model(model: TableModel | None = None, **values: Any) -> TextModel:
    model = model or TableModel(TABLE, n_ctx=400)
    speculator = Slot(model, ModelDrafter(TableModel(TABLE, n_ctx=400)))
    return TextModel(Target(speculator), lambda: 3, LetterTokenizer(), mode="sequence", **values)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start ``work``; what it returns or raises is put into the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


# --- one reply at a time


def test_threads_take_turns_and_get_the_text_each_would_get_alone() -> None:
    asked = [("abc", 1), ("cab", 2), ("e", 3), ("abcde", 4)]
    alone = [text_model().generate(prompt, seed=seed, max_tokens=80).read() for prompt, seed in asked]
    model = text_model()
    barrier = threading.Barrier(len(asked))

    def write(prompt: str, seed: int) -> str:
        barrier.wait(20)
        return "".join(model.generate(prompt, seed=seed, max_tokens=80))

    threads = [in_thread(lambda p=prompt, s=seed: write(p, s)) for prompt, seed in asked]  # type: ignore[misc]
    for thread, _ in threads:
        thread.join(20)
    assert [found for _, found in threads] == [[text] for text in alone]


def test_a_second_thread_waits_for_its_turn() -> None:
    gated = Gated(TABLE, stop_at=30)
    model = text_model(gated)
    first, first_found = in_thread(lambda: model.generate("a", seed=1, max_tokens=60).read())
    assert gated.reached.wait(20)
    second, second_found = in_thread(lambda: model.generate("b", seed=2, max_tokens=20).read())
    second.join(0.2)
    assert not second_found
    gated.gate.set()
    for thread in (first, second):
        thread.join(20)
    assert first_found == [text_model().generate("a", seed=1, max_tokens=60).read()]
    assert second_found == [text_model().generate("b", seed=2, max_tokens=20).read()]


def test_two_replies_are_read_by_turns_in_one_thread() -> None:
    model = text_model()
    first, second = model.generate("a", seed=1, max_tokens=30), model.generate("b", seed=2, max_tokens=30)
    while (next(first, None), next(second, None)) != (None, None):
        pass
    assert first.text == text_model().generate("a", seed=1, max_tokens=30).read()
    assert second.text == text_model().generate("b", seed=2, max_tokens=30).read()


def test_a_reply_that_is_closed_lets_the_next_one_begin() -> None:
    model = text_model()
    first = model.generate("a", seed=1)
    next(first)
    first.close()
    assert first.finish_reason == "cancelled"
    assert model.generate("b", seed=2, max_tokens=30).read()


def test_a_reply_that_nobody_reads_to_its_end_lets_the_next_one_begin() -> None:
    model = text_model()
    expected = text_model().generate("b", seed=2, max_tokens=30).read()
    for _ in model.generate("a", seed=1):
        break
    assert model.generate("b", seed=2, max_tokens=30).read() == expected


def test_a_reply_that_failed_to_begin_lets_the_next_one_begin() -> None:
    model = text_model()
    for _ in range(2):
        with pytest.raises(PromptTooLong):
            model.generate("a" * 400)
        with pytest.raises(SettingsError):
            model.generate("a", max_tokens=-1)
    assert model.generate("b", seed=2, max_tokens=3).read()


# --- closing


def test_close_ends_a_reply_that_another_thread_writes() -> None:
    gated = Gated(TABLE, stop_at=30)
    closed = threading.Event()
    model = text_model(gated, on_close=closed.set)
    reply = model.generate("a", seed=1)
    thread, found = in_thread(reply.read)
    assert gated.reached.wait(20)
    model.close()
    thread.join(20)
    assert closed.is_set()
    assert reply.finish_reason == "cancelled"
    assert found == [reply.text]
    assert text_model().generate("a", seed=1).read().startswith(reply.text)


def test_close_ends_a_reply_that_another_thread_has_left_lying() -> None:
    model = text_model()
    reply = model.generate("a", seed=1)
    thread, found = in_thread(lambda: next(reply))
    thread.join(20)
    model.close()
    assert reply.finish_reason == "cancelled"
    assert found and reply.text.startswith(found[0])


def test_a_late_cancel_does_not_reach_the_next_reply() -> None:
    with text_model() as model:
        first = model.generate("a", seed=1, max_tokens=5)
        alone = first.read()
        second = model.generate("a", seed=1, max_tokens=5)
        piece = next(second)
        first.cancel()
        assert piece + second.read().removeprefix(piece) == alone
        assert second.finish_reason == "length"


def test_close_in_the_midst_of_a_reply_of_the_same_thread() -> None:
    with text_model() as model:
        reply = model.generate("a", seed=1)
        next(reply)
    assert reply.finish_reason == "cancelled"
    reply.read()


def test_who_waits_for_a_turn_is_told_of_the_close() -> None:
    gated = Gated(TABLE, stop_at=30)
    model = text_model(gated)
    first, _ = in_thread(model.generate("a", seed=1).read)
    assert gated.reached.wait(20)
    second, found = in_thread(model.generate("b", seed=2).read)
    second.join(0.1)
    model.close()
    first.join(20)
    second.join(20)
    assert len(found) == 1
    assert isinstance(found[0], Closed)


def test_after_close_nothing_works() -> None:
    model = text_model()
    waiting = model.generate("a", seed=1)
    model.close()
    model.close()
    for use in (
        lambda: model.generate("a"),
        lambda: model.tokenize("a"),
        lambda: model.detokenize([1]),
        lambda: model.prompt_of("a"),
        lambda: next(waiting),
    ):
        with pytest.raises(Closed) as caught:
            use()
        assert caught.value.hint


# --- what is asked for


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"temprature": 1.0}, SettingsError),
        ({"temperature": -1.0}, SettingsError),
        ({"temperature": "hot"}, SettingsError),
        ({"seed": 1 << 64}, SettingsError),
        ({"logit_bias": {5: 1.0}}, SettingsError),
        ({"max_tokens": 0}, SettingsError),
        ({"stop": ""}, SettingsError),
        ({"stop": ["a", ""]}, SettingsError),
        ({"tokens": [1]}, SettingsError),
        ({"prompt": None}, SettingsError),
        ({"prompt": ""}, PromptError),
        ({"prompt": [{"role": "user", "content": "a"}]}, PromptError),
        ({"prompt": None, "tokens": [5]}, PromptError),
        ({"prompt": None, "tokens": [-1]}, PromptError),
        ({"prompt": "a" * 400}, PromptTooLong),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused_at_once(asked: dict[str, Any], error: type[EdgeSpecError]) -> None:
    model = text_model()
    with pytest.raises(error) as caught:
        model.generate(**({"prompt": "a"} | asked))
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"temprature.*temperature"):
        text_model().generate("a", temprature=1.0)


def test_a_random_seed_can_be_found_and_used_again() -> None:
    model = text_model()
    first, second = model.generate("a", max_tokens=50), model.generate("a", max_tokens=50)
    text = first.read()
    assert first.settings.seed != second.settings.seed
    assert model.generate("a", seed=first.settings.seed, max_tokens=50).read() == text
    assert model.generate("a", seed=first.settings.seed, attempt=1, max_tokens=50).read() != text


def test_tokens_stand_for_their_text() -> None:
    model = text_model()
    text = model.generate("cab", seed=1, max_tokens=20).read()
    assert model.generate(tokens=model.tokenize("cab"), seed=1, max_tokens=20).read() == text
    assert model.detokenize(model.tokenize("cab")) == "cab"


def test_a_chat_template_makes_the_prompt() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}e{% endif %}"
    model = text_model(chat_template=template)
    assert model.has_chat_template
    assert model.prompt_of("ab") == [0, 1, 4]
    assert model.prompt_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == [0, 1, 4]
    assert model.prompt_of("ab", raw=True) == [0, 1]


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{{ messages[0].nothing.more }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
    ],
    ids=str,
)
def test_a_broken_or_hostile_template_is_a_prompt_error(template: str) -> None:
    with pytest.raises(PromptError) as caught:
        text_model(chat_template=template).generate("a")
    assert "raw=True" in caught.value.hint


# --- errors


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    """The docstring draws it; to catch a branch is to catch what hangs below it."""
    drawn: dict[str, str] = {}
    above = ["EdgeSpecError"]
    for line in errors.__doc__.splitlines() if errors.__doc__ else ():
        name = line.strip(" │├└─").split(" ")[0]
        if "─" in line:
            depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
            above[depth:] = [name]
            drawn[name] = above[depth - 1]
    words = {"Arguments", "Sentence", "plainly", "spelled"}
    assert set(errors.__all__) == {"EdgeSpecError", *drawn, *words}
    for name, parent in drawn.items():
        error = getattr(errors, name)
        assert error.__bases__ == (getattr(errors, parent),), name
        assert issubclass(error, EdgeSpecError)
    everything = [value for value in vars(errors).values() if isinstance(value, type)]
    assert {error.__name__ for error in everything if issubclass(error, Exception)} == set(errors.__all__) - words


def test_an_error_is_one_line_that_says_what_to_do_next() -> None:
    error = SettingsError("this is wrong", hint="do that")
    assert str(error) == "this is wrong; do that"
    assert str(SettingsError("this is wrong")) == "this is wrong"
    too_long = PromptTooLong(n_prompt=30, n_ctx=20)
    assert "30" in str(too_long)
    assert "20" in str(too_long)
    needed = errors.OutOfMemory("x", needed_bytes=3 << 30, available_bytes=1 << 30, hint="less")
    assert "3,072 MiB" in str(needed)
    assert "1,024 MiB" in str(needed)


@pytest.mark.parametrize(
    "separator",
    ["\n", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\ud800", "\udfff"],
)
def test_what_an_error_quotes_stays_in_its_line(separator: str) -> None:
    quoted = f"a{separator}b"
    shown = repr(quoted)[1:-1]
    error = SettingsError(f"[{quoted}] is wrong", argument="grammar", hint=Sentence("shorten {grammar} {x}", x=quoted))
    assert str(error) == f"grammar [{shown}] is wrong; shorten `grammar` {shown}"
    assert error.spelled(lambda named: f"--{named}") == f"--grammar [{shown}] is wrong; shorten --grammar {shown}"
    assert str(EdgeSpecError(quoted)) == EdgeSpecError(quoted).spelled(str) == shown


def test_numbers_of_numpy_are_numbers() -> None:
    with text_model() as model:
        plain = model.generate(tokens=[1], seed=3, temperature=0.5, top_k=3, max_tokens=8, logit_bias={2: -1.0})
        asked: dict[str, Any] = {
            "seed": numpy.int64(3),
            "temperature": numpy.float32(0.5),
            "top_k": numpy.uint8(3),
            "max_tokens": numpy.int32(8),
            "logit_bias": {numpy.int64(2): numpy.float32(-1)},
            "timeout": numpy.float64(60),
        }
        other = model.generate(tokens=[1], **asked)
        assert other.read() == plain.read()
        assert other.settings == plain.settings
        assert {type(value) for value in vars(other.settings).values()} == {
            type(value) for value in vars(plain.settings).values()
        }
        for wrong in ({"temperature": numpy.float32("nan")}, {"seed": numpy.float64(3)}, {"top_k": numpy.bool_(True)}):
            with pytest.raises(SettingsError):
                model.generate(tokens=[1], **wrong)
    options = LoadOptions.of("demo", {"n_ctx": numpy.int64(512), "memory": numpy.int64(1 << 30)})
    assert (type(options.n_ctx), options.memory_bytes) == (int, 1 << 30)


def test_what_a_reply_tells_is_json() -> None:
    with text_model() as model:
        reply = model.generate(tokens=[1], seed=3, max_tokens=8, logit_bias={2: -1.0})
        reply.read()
    told = json.loads(json.dumps([reply.statistics.to_json(), reply.settings.to_json()]))
    assert (told[0]["tokens"], told[0]["drafted"]) == (reply.statistics.tokens, reply.statistics.drafted)
    assert SamplerSettings.of(told[1] | {"logit_bias": {2: -1.0}}) == reply.settings


def test_a_reply_is_shown_as_its_text() -> None:
    with text_model() as model:
        reply = model.generate(tokens=[1], seed=3, max_tokens=8)
        assert str(reply) == ""
        assert f"{reply}" == reply.text
        text = reply.read()
        assert text and str(reply) == f"{reply}" == text
        assert repr(reply).startswith("<Reply: 8 tokens")


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
@pytest.mark.parametrize(("error", "reason"), [(KeyboardInterrupt, "cancelled"), (RuntimeError, "error")])
def test_who_interrupts_a_reply_has_cancelled_it(error: type[BaseException], reason: str) -> None:
    asked: list[Reply] = []

    def interrupted(parts: Any, is_decode: bool) -> None:
        if interrupting.n_past >= 5 and asked:
            reply = asked.pop()
            if error is RuntimeError:
                raise RuntimeError
            # Ctrl-C, while the reader waits for this very step.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while not reply.is_cancelled:
                pass

    interrupting = TableModel(TABLE, n_ctx=400)
    watch(interrupting, interrupted)
    with text_model(interrupting) as model:
        reply = model.generate(tokens=[1], seed=3, max_tokens=80, ignore_eos=True)
        asked.append(reply)
        with pytest.raises(error):
            reply.read()
        assert reply.token_ids
        assert reply.finish_reason == reason
        assert model.generate(tokens=[1], seed=3, max_tokens=8).read()


def test_tasks_read_replies_and_prompts_are_counted() -> None:
    async def texts(model: TextModel) -> list[Any]:
        reply, replies = model.generate(tokens=[1], seed=3, max_tokens=8), model.generate(tokens=[1], n=2, max_tokens=4)
        return [await task for task in (asyncio.create_task(reply.aread()), asyncio.create_task(replies.aread()))]

    with text_model() as model:
        alone, several = asyncio.run(texts(model))
        assert alone == model.generate(tokens=[1], seed=3, max_tokens=8).read()
        assert len(several) == 2
        assert model.count_tokens("ab", raw=True) == len(model.prompt_of("ab", raw=True)) > 0
