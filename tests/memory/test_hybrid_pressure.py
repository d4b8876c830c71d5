"""Laws of models with recurrent layers while memory is scarce: what is suspended, moved to the disk or cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hybrid_files import ONLY_LETTERS, HybridFiles
from scarce_memory import ASKED, PLENTY, SCARCE, Change, SimulatedMemory, changed

import edge_spec
from edge_spec import ChatSession, TextModel

pytestmark = pytest.mark.long

LONG, SHORT = 640, 160
PROMPT = list(range(40, 100))
ENDS = [*"aeiotn"]
"""Letters that end answers in the middle of a draft, whose rest is in the model's state then."""


@pytest.fixture
def load(hybrids: HybridFiles, probe_cache: Path) -> Callable[..., TextModel]:
    """Loads a small hybrid whose memory is what a test decides; its name may end with the engine that runs it."""

    def of(name: str, decide: Callable[[], int], **values: Any) -> TextModel:
        name, _, engine = name.partition(" on ")
        asked: dict[str, Any] = {"n_ctx": LONG, "n_threads": 1, "cache_dir": probe_cache, **values}
        if asked.get("speculation") == "hierarchy":
            asked |= {role: hybrids[f"{name}-{role}"] for role in ("draft", "intermediate")}
        return edge_spec.load(hybrids[name], engine=engine or "llama", watch=SimulatedMemory(decide).watch(), **asked)

    return of


class Talk:
    """Two conversations by turns, retried, changed, saved and loaded, and prompts that begin like earlier ones.

    Attributes:
        said: everything that was answered, and told.
        n_read: how many tokens were read for each answer.
    """

    def __init__(self, model: TextModel, folder: Path, temperature: float = 1.0) -> None:
        self._model = model
        self._temperature = temperature
        self.said: list[Any] = []
        self.n_read: list[int] = []
        one, other = (self._begun(seed) for seed in (3, 4))
        for text in ASKED:
            self._hear(one.send(text))
            self._hear(other.send(text))
            self._ask(reuse=True)
        self._hear(one.retry())
        self._hear(other.edit("Why is it?"))
        one.save(folder / "said")
        one.close()
        one = ChatSession.load(model, folder / "said", on_notice=self.said.append)
        self._ask(reuse=False)
        self._hear(one.send("Go on."))
        self._hear(other.send("Go on.", max_tokens=5, stop=[]))
        self._hear(other.continue_answer())

    def _begun(self, seed: int) -> ChatSession:
        return self._model.chat(
            seed=seed,
            temperature=self._temperature,
            max_tokens=40,
            stop=ENDS,
            ignore_eos=True,
            logit_bias=ONLY_LETTERS,
            on_notice=self.said.append,
        )

    def _ask(self, *, reuse: bool) -> None:
        asked: dict[str, Any] = {"temperature": self._temperature, "max_tokens": 20, "ignore_eos": True}
        self._hear(self._model.generate(tokens=PROMPT, seed=1, reuse=reuse, logit_bias=ONLY_LETTERS, **asked))

    def _hear(self, reply: Any) -> None:
        reply.read()
        self.said.append((reply.prompt, reply.token_ids, reply.finish_reason))
        self.n_read.append(reply.prompt_progress[0])

    @property
    def answers(self) -> list[Any]:
        """What was answered."""
        return [each for each in self.said if not isinstance(each, str)]


MODES = [("qwen35", "hierarchy", 2), ("lfm2", "ngram", 0), ("falcon-h1", "off", 0)]
MODES += [("qwen35 on onnx", "hierarchy", 2), ("lfm2 on onnx", "ngram", 0)]


@pytest.mark.parametrize("n_ctx", [LONG, SHORT])
@pytest.mark.parametrize(("name", "mode", "n_lossless"), MODES)
def test_conversations_with_a_hybrid_under_pressure_are_those_without(
    load: Callable[..., TextModel], name: str, mode: str, n_lossless: int, n_ctx: int, tmp_path: Path
) -> None:
    """In a context that they outgrow, too; and what lies on the disk is not read again, but for what comes after places
    that only texts in their cells go back to."""
    with load(name, lambda: PLENTY, speculation=mode, n_ctx=n_ctx) as model:
        calm = Talk(model, tmp_path)
        assert model.degradations == ()
    seen, n_moved = set(), 0
    for run in range(2):
        rng = random.Random(run)

        def decide(rng: random.Random = rng) -> int:
            nonlocal n_moved
            seen.add(len(model.degradations))
            # Never down to the steps that change the text: moving conversations to the disk comes before.
            moves = model.session_cache_bytes > 0
            if (moves or len(model.degradations) < n_lossless) and rng.random() < 0.2:
                n_moved += moves
                return SCARCE
            return PLENTY if rng.random() < 0.2 else 150

        with load(name, decide, speculation=mode, n_ctx=n_ctx) as model:
            pressed = Talk(model, tmp_path)
            model.ledger.check_integrity()
        assert pressed.said == calm.said, run
        if name.endswith("onnx"):
            assert all(more >= n for more, n in zip(pressed.n_read, calm.n_read, strict=True)), run
        else:
            assert pressed.n_read == calm.n_read, run
    assert seen == {*range(n_lossless + 1)}
    # Where each text has drafters of its own, all lie in their cells, and there is nothing to be moved.
    assert n_moved or name == "qwen35 on onnx"


@pytest.mark.parametrize(("name", "mode", "n_lossless"), MODES)
def test_a_hybrid_that_cannot_be_suspended_reads_again_and_answers_alike(
    load: Callable[..., TextModel],
    name: str,
    mode: str,
    n_lossless: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(name, lambda: PLENTY, speculation=mode) as model:
        calm = Talk(model, tmp_path)
    with load(name, lambda: PLENTY, speculation=mode) as model:
        lend = model.ledger.lend
        rng = random.Random(1)

        def refused(owner: str, line: str, n_bytes: int) -> Any:
            return lend(owner, line, 1 << 60 if rng.random() < 0.6 else n_bytes)

        monkeypatch.setattr(model.ledger, "lend", refused)
        pressed = Talk(model, tmp_path)
        model.ledger.check_integrity()
    assert pressed.answers == calm.answers
    assert sum(pressed.n_read) > sum(calm.n_read)


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "falcon-h1", "qwen35 on onnx", "lfm2 on onnx"])
def test_a_hybrid_in_a_quarter_of_its_context_keeps_its_states(
    load: Callable[..., TextModel], opening: Callable[[Change], None], name: str
) -> None:
    """Cells and states mean the same there: nothing is read again, and the answer goes on as it would have."""
    asked: dict[str, Any] = {"n_ctx": None, "kv_k": "f16", "kv_v": "f16", "speculation": "off"}
    said, n_read = [], list[int]()

    def counted(target: Any) -> None:
        prefill = target.prefill

        def read(texts: Any) -> None:
            n_read.append(sum(len(tokens) for _, tokens in texts))
            prefill(texts)

        target.prefill = read

    def decide() -> int:
        # In the middle of an answer.
        return SCARCE if model.followed["target"].model.n_past > 55 and len(model.degradations) < wanted else 150

    for wanted in (0, 2):
        with load(name, decide, **asked) as model:
            n_ctx = model.n_ctx
            if wanted:
                opening(changed(counted))
            session = model.chat(temperature=0.0, max_tokens=30, ignore_eos=True, logit_bias=ONLY_LETTERS)
            session.send(ASKED[0]).read()
            assert (len(model.degradations), model.n_ctx) == (wanted, n_ctx >> wanted)
            assert n_read == []
            session.send(ASKED[1]).read()
            said.append([message.content for message in session.messages])
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "falcon-h1"])
def test_a_hybrid_whose_cache_was_made_smaller_answers_as_one_that_was_small_from_the_start(
    load: Callable[..., TextModel], name: str
) -> None:
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 40, "ignore_eos": True, "logit_bias": ONLY_LETTERS, "raw": True}
    fixed: dict[str, Any] = {"n_ctx": 4096, "speculation": "off"}
    with load(name, lambda: SCARCE if not model.degradations else 150, **fixed) as model:
        first = model.generate(ASKED[0], **asked)
        first.read()
        assert first.notices
        profile, late = model.profile, model.generate(ASKED[1], **asked).read()
    with load(name, lambda: PLENTY, **fixed, kv_k="q8_0", kv_v="q8_0") as model:
        assert model.profile == profile
        assert model.generate(ASKED[1], **asked).read() == late


@pytest.mark.parametrize(("name", "mode", "n_lossless"), MODES)
def test_copies_of_states_take_no_more_than_was_claimed(
    load: Callable[..., TextModel], name: str, mode: str, n_lossless: int, tmp_path: Path
) -> None:
    with load(name, lambda: PLENTY, speculation=mode) as model:
        Talk(model, tmp_path)
        lent = {line.name: line for line in model.ledger.lent if line.owner == "sessions"}
    saved = lent["copies to save"]
    assert saved.measured_bytes is not None
    assert 0.3 * saved.predicted_bytes < saved.measured_bytes <= saved.predicted_bytes
