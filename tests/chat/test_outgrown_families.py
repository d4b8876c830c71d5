"""Laws of conversations that outgrow their context: with experts, windows, sinks and shared layers, on our kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from families import EXPERT_FAMILIES
from gemma4_shapes import SHAPES, write_gemma4
from gguf_files import N_VOCAB, write_gguf
from hybrid_files import ONLY_LETTERS
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid
from recorded_drafts import recorded_mode

import edge_spec
from edge_spec import ChatSession, Mode, TextModel
from edge_spec.engines.onnx.kernels import available
from edge_spec.speculation.language_model import READ_AGAIN

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "
LFM2_MOE = replace(SMALL_HYBRIDS["lfm2"], architecture="lfm2moe", n_layers=3, attention=(1,), experts=(8, 2, 96))

Writer = Callable[[Path], Path]
WRITERS: dict[str, Writer] = {
    **{
        name: partial(write_gguf, chat_template=TEMPLATE, **EXPERT_FAMILIES[name])
        for name in ("qwen3moe, 2 of 8", "gpt-oss, 4 of 32", "granitemoe, 4 of 32, one shared")
    },
    "lfm2moe, 2 of 8": lambda path: write_hybrid(path, LFM2_MOE, "Q4_0", seed=1),
    "gemma4, shared layers": partial(
        write_gemma4, shape=SHAPES["as E2B: shared layers, a table"], chat_template=TEMPLATE
    ),
}
READS_AGAIN = {"lfm2moe, 2 of 8"}
"""Whose states hold what has left the context; the others move their keys."""

N_CTX = 160
QUESTIONS = ("Tell me a story about a dog.", "And then?", "Why?", "Because?", "Never?", "Go on.", "And then?")

of_each_kind = pytest.mark.parametrize("kind", WRITERS)
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write(tmp_path_factory.mktemp("model") / "model.gguf") for kind, write in WRITERS.items()}


def loaded(path: Path, mode: str | Mode = "off") -> TextModel:
    return edge_spec.load(path, speculation=mode, engine="onnx", n_ctx=N_CTX, n_threads=1, cache_dir=path.parent)


def begun(model: TextModel, *, seed: int = 5, temperature: float) -> ChatSession:
    asked: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "logit_bias": ONLY_LETTERS}
    return model.chat(seed=seed, temperature=temperature, **asked)


class Told:
    """A conversation, led question by question.

    Attributes:
        answers: token ids of each.
        texts: all that the model followed after each, as token ids.
        seen: how many tokens the model saw after each, and how many the conversation had.
        n_drafted, n_accepted: of drafts, in all.
    """

    def __init__(self, model: TextModel, session: ChatSession) -> None:
        self.session, self._followed = session, model.followed["target"]
        self.answers: list[list[int]] = []
        self.texts: list[list[int]] = []
        self.seen: list[tuple[int, int]] = []
        self.n_drafted = self.n_accepted = 0

    def ask(self, question: str) -> None:
        reply = self.session.send(question)
        reply.read()
        self.answers.append(reply.token_ids)
        self.texts.append(list(self._followed.text.tokens))
        self.seen.append((self.session.n_seen, self.session.n_tokens))
        self.n_drafted += reply.statistics.drafted
        self.n_accepted += reply.statistics.accepted


def told(model: TextModel, temperature: float, *, seed: int = 5) -> Told:
    """A conversation that becomes longer than the context, twice."""
    found = Told(model, begun(model, seed=seed, temperature=temperature))
    for question in QUESTIONS:
        found.ask(question)
    return found


@at_temperatures
@of_each_kind
def test_drafts_change_nothing_in_a_conversation_that_outgrows_its_context(
    files: dict[str, Path], kind: str, temperature: float
) -> None:
    with loaded(files[kind]) as model:
        plain = told(model, temperature)
        assert (READ_AGAIN in model.profile.facts) == (kind in READS_AGAIN)
    assert max(map(len, plain.texts)) <= N_CTX
    assert sum(len(later) < len(earlier) for earlier, later in zip(plain.texts, plain.texts[1:], strict=False)) > 1
    recorded = partial(recorded_mode, plain.texts, N_VOCAB, accuracy=0.7)
    modes = ["ngram", recorded(), *([] if kind in READS_AGAIN else [recorded(trees=True, limit=6)])]
    for mode in modes:
        with loaded(files[kind], mode) as model:
            drafted = told(model, temperature)
        assert (drafted.answers, drafted.texts, drafted.seen) == (plain.answers, plain.texts, plain.seen)
        if mode != "ngram":
            assert 0.25 * drafted.n_drafted < drafted.n_accepted < 0.9 * drafted.n_drafted


@at_temperatures
@of_each_kind
def test_a_saved_conversation_goes_on_as_if_it_had_not_been(
    files: dict[str, Path], kind: str, temperature: float, tmp_path: Path
) -> None:
    with loaded(files[kind]) as model:
        plain = told(model, temperature)
    for n_saved in range(1, len(QUESTIONS)):
        with loaded(files[kind]) as model:
            found = Told(model, begun(model, temperature=temperature))
            for question in QUESTIONS[:n_saved]:
                found.ask(question)
            found.session.save(tmp_path / "said")
            found.session.close()
        with loaded(files[kind]) as model:
            # Another text passes through the cells before.
            model.generate("A", max_tokens=9, seed=1).read()
            notices: list[str] = []
            found.session = ChatSession.load(model, tmp_path / "said", on_notice=notices.append)
            assert notices == []
            again = Told(model, found.session)
            for question in QUESTIONS[n_saved:]:
                again.ask(question)
        assert (again.answers, again.seen) == (plain.answers[n_saved:], plain.seen[n_saved:])


@at_temperatures
@of_each_kind
@pytest.mark.parametrize("mode", ["off", "ngram"])
def test_conversations_side_by_side_outgrow_their_contexts_as_each_alone(
    files: dict[str, Path], kind: str, temperature: float, mode: str
) -> None:
    with loaded(files[kind]) as model:
        alone = [told(model, temperature, seed=seed) for seed in (5, 6, 7)]
    with loaded(files[kind], mode) as model:
        sessions = [begun(model, seed=seed, temperature=temperature) for seed in (5, 6, 7)]
        for turn, question in enumerate(QUESTIONS):
            replies = [session.send(question) for session in sessions]
            for _ in range(20):
                for reply in replies:
                    next(reply, None)
            for reply in replies:
                reply.read()
            assert [reply.token_ids for reply in replies] == [each.answers[turn] for each in alone]


@of_each_kind
def test_a_question_that_outgrows_the_context_takes_no_cells_of_a_text_that_begins_alike(
    files: dict[str, Path], kind: str
) -> None:
    """Its rest is read in its new places; moved cells of another text have other bits."""
    shorter = "Tell me a story about a dog. " * 2
    question = shorter + "And then? " * 4
    for seed in range(4):
        with loaded(files[kind]) as model:
            session = begun(model, seed=seed, temperature=1.0)
            alone = session.send(question)
            alone.read()
            assert session.n_seen < session.n_tokens
        with loaded(files[kind]) as model:
            other = begun(model, temperature=1.0).send(shorter)
            next(other)
            beside = begun(model, seed=seed, temperature=1.0).send(question)
            beside.read()
            n_moved = N_CTX // 2
            assert other.prompt[:n_moved] == beside.prompt[:n_moved] and not other.has_ended
            assert beside.token_ids == alone.token_ids


@of_each_kind
def test_a_conversation_that_outgrows_its_context_after_it_lost_its_cells_is_told_so(
    files: dict[str, Path], kind: str
) -> None:
    with loaded(files[kind]) as model:
        notices: list[str] = []
        session = begun(model, temperature=1.0)
        session.on_notice = notices.append
        for question in QUESTIONS[:2]:
            session.send(question).read()
        assert session.n_seen == session.n_tokens
        # As when others needed its cells, and memory had no room for a copy.
        model.prefix_cache.release(session)
        other = begun(model, seed=6, temperature=1.0).send(QUESTIONS[0])
        next(other)
        session.send("And then? " * 8).read()
        assert session.n_seen < session.n_tokens
        assert any("read again" in each for each in notices)
