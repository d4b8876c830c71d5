"""Laws of conversations with recurrent models: they go back to the nearest place with a state, and read from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hybrid_files import ONLY_LETTERS, HybridFiles
from recorded_drafts import recorded_mode

import edge_spec
from edge_spec import ChatSession, TextModel
from edge_spec.engines.llama.architectures import KEEPS_SNAPSHOTS
from edge_spec.generation.reply import Reply
from edge_spec.speculation.modes import Mode

pytestmark = pytest.mark.long

CASES = (("lfm2", "llama"), ("qwen35", "llama"), ("falcon-h1", "llama"), ("lfm2", "onnx"), ("qwen35", "onnx"))
"""Architectures, and engines that run them."""

of_each_case = pytest.mark.parametrize(("name", "engine"), CASES, ids=map(" on ".join, CASES))

N_VOCAB = 384
N_WRITTEN = 20
LONG, SHORT = 700, 160


def loaded(path: Path, engine: str, mode: str | Mode, n_ctx: int = LONG) -> TextModel:
    return edge_spec.load(path, speculation=mode, engine=engine, n_ctx=n_ctx, n_threads=1, cache_dir=path.parent)


def begun(model: TextModel, *, seed: int, temperature: float) -> ChatSession:
    asked: dict[str, Any] = {"max_tokens": N_WRITTEN, "ignore_eos": True, "logit_bias": ONLY_LETTERS}
    return model.chat(seed=seed, temperature=temperature, **asked)


class Heard:
    """Answers, and what was read for them.

    Attributes:
        answers: token ids of each.
        texts: all that the model followed after each, as token ids.
        n_read: how many tokens were read for each.
        n_expected: how many there are behind the place that was given.
        n_drafted, n_accepted: of drafts, in all.
    """

    def __init__(self, model: TextModel) -> None:
        self._followed, self._n_ctx = model.followed["target"], model.n_ctx
        self.answers: list[list[int]] = []
        self.texts: list[list[int]] = []
        self.n_read: list[int] = []
        self.n_expected: list[int] = []
        self.n_drafted = self.n_accepted = 0

    def hear(self, reply: Reply, place: int | None = None) -> int:
        """Read a reply to its end; returns the place where its text ends.

        Args:
            place: from where on its prompt should be read; its end if None.
        """
        reply.read()
        end = len(reply.prompt) - 1
        self.answers.append(reply.token_ids)
        whole = [*reply.prompt, *reply.token_ids]
        # A text that was cut is known to the model only, which follows one of several.
        self.texts.append(whole if len(whole) <= self._n_ctx else list(self._followed.text.tokens))
        self.n_read.append(reply.prompt_progress[0])
        self.n_expected.append(end - min(end, end if place is None else place))
        self.n_drafted += reply.statistics.drafted
        self.n_accepted += reply.statistics.accepted
        return len(self.texts[-1]) - 1


def talk(model: TextModel, temperature: float, folder: Path) -> Heard:
    """Two conversations by turns, one of which is retried, changed, continued, saved and loaded."""
    heard = Heard(model)
    session, other = (begun(model, seed=seed, temperature=temperature) for seed in (3, 4))
    first = heard.hear(session.send("Tell me a story about a dog."), 0)
    heard.hear(session.send("And then?"), first)
    heard.hear(session.retry())
    third = heard.hear(session.edit("Why is it?"), first)
    heard.hear(other.send("Hello"), 0)
    heard.hear(session.send("Because?"), third)
    session.undo()
    fifth = heard.hear(session.send("Never?"), third)
    sixth = heard.hear(session.continue_answer(), fifth)
    session.save(folder / "said")
    session.close()
    session = ChatSession.load(model, folder / "said")
    heard.hear(session.send("Go on."), sixth)
    return heard


def outgrow(model: TextModel, temperature: float) -> Heard:
    """A conversation that becomes longer than the context."""
    heard = Heard(model)
    session = begun(model, seed=5, temperature=temperature)
    for question in ("Tell me a story about a dog.", "And then?", "Why?", "Because?", "Never?", "Go on.", "And then?"):
        heard.hear(session.send(question))
    return heard


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@of_each_case
def test_a_conversation_reads_what_comes_after_the_nearest_place(
    hybrids: HybridFiles, name: str, engine: str, temperature: float, tmp_path: Path
) -> None:
    with loaded(hybrids[name], engine, "off") as model:
        plain = talk(model, temperature, tmp_path)
    assert plain.n_read == plain.n_expected
    require_same_with_drafts(hybrids[name], name, engine, plain, lambda model: talk(model, temperature, tmp_path))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@of_each_case
def test_a_conversation_outgrows_its_context(hybrids: HybridFiles, name: str, engine: str, temperature: float) -> None:
    with loaded(hybrids[name], engine, "off", SHORT) as model:
        plain = outgrow(model, temperature)
        assert ("overflow", "read again") in model.profile.facts
    assert max(map(len, plain.texts)) <= SHORT
    assert any(len(later) < len(earlier) for earlier, later in zip(plain.texts, plain.texts[1:], strict=False))
    require_same_with_drafts(hybrids[name], name, engine, plain, lambda model: outgrow(model, temperature), SHORT)


def require_same_with_drafts(path: Path, name: str, engine: str, plain: Heard, lead: Any, n_ctx: int = LONG) -> None:
    """The same is heard with drafts that are accepted and rejected, and nothing else is read for it."""
    mode = recorded_mode(plain.texts, N_VOCAB, accuracy=0.7)
    with loaded(path, engine, mode, n_ctx) as model:
        drafted = lead(model)
    assert (drafted.answers, drafted.texts) == (plain.answers, plain.texts)
    assert drafted.n_read == plain.n_read
    if name in KEEPS_SNAPSHOTS:
        assert 0.3 * drafted.n_drafted < drafted.n_accepted < 0.9 * drafted.n_drafted
    else:
        assert drafted.n_drafted == 0


@of_each_case
def test_each_answer_is_that_of_a_model_that_reads_its_whole_text(
    hybrids: HybridFiles, name: str, engine: str, tmp_path: Path
) -> None:
    """At temperature 0, where noise cannot tell texts of different lengths apart."""
    for n_ctx in (LONG, SHORT):
        with loaded(hybrids[name], engine, "off", n_ctx) as model:
            heard = talk(model, 0.0, tmp_path) if n_ctx == LONG else outgrow(model, 0.0)
        with loaded(hybrids[name], engine, "off", n_ctx) as model:
            for answer, text in zip(heard.answers, heard.texts, strict=True):
                fresh = model.generate(
                    tokens=text[: -len(answer)],
                    temperature=0.0,
                    max_tokens=len(answer),
                    ignore_eos=True,
                    logit_bias=ONLY_LETTERS,
                )
                fresh.read()
                assert fresh.token_ids == answer


@of_each_case
def test_prompts_that_begin_like_earlier_ones_go_back_to_a_place_too(
    hybrids: HybridFiles, name: str, engine: str
) -> None:
    with loaded(hybrids[name], engine, "ngram" if name in KEEPS_SNAPSHOTS else "off") as model:

        def asked(tokens: list[int], *, reuse: bool) -> Reply:
            reply = model.generate(
                tokens=tokens,
                seed=1,
                temperature=1.0,
                max_tokens=10,
                ignore_eos=True,
                reuse=reuse,
                logit_bias=ONLY_LETTERS,
            )
            reply.read()
            return reply

        beginning = [1, *range(40, 110)]
        first = asked(beginning, reuse=True)
        assert first.n_reused == 0
        text = [*beginning, *first.token_ids]
        longer = [*text, *range(40, 60)]
        # A text is continued; the same is asked again; and a prompt that begins like it goes back to where its reading
        # began.
        places = ((longer, len(text) - 1), (longer, len(longer) - 1), ([*longer[:-5], 99, 98], len(text) - 1))
        replies = [asked(prompt, reuse=True) for prompt, _ in places]
        assert [reply.n_reused for reply in replies] == [place for _, place in places]
        for reply in replies:
            assert reply.token_ids == asked(list(reply.prompt), reuse=False).token_ids
