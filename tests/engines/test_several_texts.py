"""Laws of several texts at once on real models: token for token what each is alone, on every engine."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trimmed_files import write_trimmed

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import PromptTooLong
from edge_spec.model import TextModel
from edge_spec.models import inspect, resolve_family

pytestmark = pytest.mark.long

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

PROMPTS = ["Tell me a story about a dog.", "Why is the sky blue?", "Name three animals.", "What is a boat?", "Hi!"]
NAMES = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
WISHES: list[dict[str, Any]] = [
    {"max_tokens": 32},
    {"max_tokens": 24, "temperature": 0},
    {"max_tokens": 32, "stop": ["the", "."]},
    {"max_tokens": 60, "json_schema": NAMES},
    {"max_tokens": 30, "mirostat": 2, "ignore_eos": True},
    {"max_tokens": 40, "repeat_penalty": 1.3, "top_k": 0, "temperature": 1.5},
]


@pytest.fixture(scope="module", params=["onnx f32", "onnx f16", "llama auto"])
def shared(request: pytest.FixtureRequest, probe_cache: Path) -> Iterator[TextModel]:
    """Models whose texts share cells."""
    engine, kind = request.param.split()
    if engine == "onnx" and available() is not None:
        pytest.skip("the kernels were not built")
    with edge_spec.load("demo", engine=engine, n_ctx=400, cache_dir=probe_cache, kv_k=kind, kv_v=kind) as model:
        assert model.followed["target"].model.pool.max_paths > 1
        yield model


@needs_kernels
@pytest.mark.parametrize(
    ("mode", "smaller"), [("sequence", ["draft"]), ("tree", ["draft"]), ("hierarchy", ["draft", "intermediate"])]
)
def test_models_draft_for_several_texts_as_for_each_alone(tmp_path: Path, mode: str, smaller: list[str]) -> None:
    family = resolve_family("demo")
    given: dict[str, Any] = {name: getattr(family, name) for name in smaller}
    asked: dict[str, Any] = {"seed": 9, "max_tokens": 50, "ignore_eos": True}
    with edge_spec.load(
        family.target, engine="onnx", n_ctx=160, cache_dir=tmp_path, speculation=mode, draft_limit=2, **given
    ) as model:
        replies: Any = model.generate_many(PROMPTS, **asked)
        several = outcomes(replies)
        together = [(each.statistics.drafted, each.statistics.accepted) for each in replies.answers]
        singles, single = [], []
        for prompt in PROMPTS:
            reply: Any = model.generate(prompt, **asked)
            text = reply.read()
            singles.append((reply.token_ids, text, reply.finish_reason))
            single.append((reply.statistics.drafted, reply.statistics.accepted))
    assert several == singles
    # Guesses are computed with other rows beside them, and may differ where two are equally likely.
    assert all(
        abs(each - own) <= 0.1 * own
        for both in zip(together, single, strict=True)
        for each, own in zip(*both, strict=True)
    )
    assert all(accepted > 10 for _, accepted in together)


def alone(model: TextModel, prompt: str, **asked: Any) -> tuple[Any, ...]:
    reply: Any = model.generate(prompt, **asked)
    text = reply.read()
    return reply.token_ids, text, reply.finish_reason


def outcomes(replies: Any) -> list[tuple[Any, ...]]:
    replies.read()
    found = (replies[index] for index in range(len(replies)))
    return [(each.token_ids, each.text, each.finish_reason) for each in found]


@pytest.mark.parametrize("asked", WISHES, ids=lambda asked: " ".join(map(str, asked)))
def test_several_answers_are_the_attempts_of_one_seed(shared: TextModel, asked: dict[str, Any]) -> None:
    several = outcomes(shared.generate(PROMPTS[0], n=5, seed=4, **asked))
    assert several == [alone(shared, PROMPTS[0], seed=4, attempt=n, **asked) for n in range(5)]


@pytest.mark.parametrize("asked", WISHES[:4], ids=lambda asked: " ".join(map(str, asked)))
def test_several_prompts_are_answered_as_each_alone(shared: TextModel, asked: dict[str, Any]) -> None:
    prompts = [*PROMPTS, "Tell me about cats. " * 12, *PROMPTS[:2]] * 3
    several = outcomes(shared.generate_many(prompts, seed=9, **asked))
    assert several == [alone(shared, prompt, seed=9, **asked) for prompt in prompts]


def test_texts_that_fill_the_context_end_there(shared: TextModel) -> None:
    prompts = ["cat " * 150, "dog " * 250, "bird " * 5000, "Hi!"]
    replies = shared.generate_many(prompts, seed=1, raw=True, ignore_eos=True)
    found = outcomes(replies)
    assert [reason for *_, reason in found] == ["context", "context", "error", "context"]
    assert isinstance(replies[2].error, PromptTooLong)
    for index in (0, 1, 3):
        assert found[index] == alone(shared, prompts[index], seed=1, raw=True, ignore_eos=True)


def test_the_ledger_says_what_further_cells_take(shared: TextModel) -> None:
    assert shared.check_memory()
    held = shared.ledger.held_bytes
    replies = shared.generate_many([f"{n} " + "cat " * 200 for n in range(4)], seed=1, raw=True, max_tokens=20)
    next(replies)
    pool = shared.followed["target"].model.pool
    line = next(line for line in shared.ledger if line.owner == "texts")
    assert line.predicted_bytes >= 2 * 200 * pool.cell_bytes
    assert pool.n_cells * pool.cell_bytes >= line.predicted_bytes
    shared.ledger.check_integrity()
    replies.close()
    assert shared.check_memory()
    assert not [line for line in shared.ledger if line.owner == "texts"]
    assert shared.ledger.held_bytes == held


@pytest.mark.parametrize(("engine", "kind"), [("llama", "auto"), ("llama", "f16"), ("onnx", "auto")])
def test_where_texts_come_one_after_the_other_they_are_the_same(engine: str, kind: str, probe_cache: Path) -> None:
    """With 16-bit caches on llama.cpp, and where a budget has no room for more caches."""
    with edge_spec.load("demo", engine=engine, n_ctx=256, cache_dir=probe_cache, kv_k=kind, kv_v=kind) as model:
        if kind == "auto":
            model.ledger.claim("test", "the rest", (model.ledger.left_bytes or 0) - 1000)
        several = outcomes(model.generate_many(PROMPTS, seed=2, max_tokens=20))
        assert several == [alone(model, prompt, seed=2, max_tokens=20) for prompt in PROMPTS]
        answers = outcomes(model.generate(PROMPTS[1], n=2, seed=2, max_tokens=20))
        assert answers == [alone(model, PROMPTS[1], seed=2, attempt=n, max_tokens=20) for n in range(2)]


@needs_kernels
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_an_answer_that_waits_without_cells_is_the_one_that_did_not_or_tells(kind: str, tmp_path: Path) -> None:
    """Wherever another text takes its cells, with no memory for a copy: as the context becomes full, too."""

    def written(model: TextModel, interrupted: int) -> tuple[list[int], bytes, list[str]]:
        """Return an answer that waited after so many pieces, the bits of its cells, and what was told."""
        notices: list[str] = []
        model.ledger.claim("test", "the rest", (model.ledger.left_bytes or 0) - 1000)
        session = model.chat(seed=3, on_notice=notices.append)
        reply = session.send("Hi!", max_tokens=64, temperature=1.5, ignore_eos=True)
        for n, _ in enumerate(reply.events(), 1):
            if n == interrupted:
                model.generate("cat " * 48, seed=1, max_tokens=1).read()
        model.ledger.release("test")
        with model.prefix_cache.copied(session) as caches:
            assert caches is not None
            cells = caches.states["target"]
        session.close()
        return reply.token_ids, cells, notices

    settings: dict[str, Any] = {"speculation": "off", "n_ctx": 64, "cache_dir": tmp_path, "kv_k": kind, "kv_v": kind}
    with edge_spec.load("demo", engine="onnx", **settings) as model:
        tokens, cells, notices = written(model, 0)
        assert [notice.startswith("the context is full") for notice in notices] == [True]
        seen = set()
        for n in range(1, 64):
            others, other_cells, more = written(model, n)
            assert others[:n] == tokens[:n]
            seen.add((other_cells == cells and others == tokens, more[1:] != []))
            # What is told comes after the context was full: before, all is read as it was.
            assert more[0] == notices[0]
        assert seen == {(True, False), (False, True)}


def test_answers_share_their_prompt_however_often_it_is_asked(shared: TextModel) -> None:
    """Texts of earlier answers make room: their number does not grow."""
    asked: dict[str, Any] = {"seed": 1, "max_tokens": 4, "raw": True}
    counts = []
    for number in range(4):
        before = shared.rows["prompt"]
        replies = shared.generate(
            f"{number}: once upon a time there was a dog in a small house by the sea", n=16, **asked
        )
        replies.read()
        assert shared.rows["prompt"] - before < 2 * len(replies.answers[0].prompt)
        counts.append(len(shared.prefix_cache.target.slots))
    assert counts[-1] == counts[-2] <= 2 * shared.most_texts + 1


@pytest.mark.parametrize("engine", ["llama", pytest.param("onnx", marks=needs_kernels)])
def test_conversations_in_turn_leave_nothing_but_their_words(engine: str, probe_cache: Path) -> None:
    """Twenty more conversations than there are cells for bring words, and nothing else that lives or is claimed."""
    with edge_spec.load("demo", engine=engine, speculation="ngram", n_ctx=256, cache_dir=probe_cache) as model:
        model.ledger.claim("test", "the rest", max(0, (model.ledger.left_bytes or 0) - 1000))
        chats = [model.chat("You are a friend.", seed=number, max_tokens=4) for number in range(60)]
        grown, claimed = [], []
        for first in range(0, 60, 20):
            before = living()
            for turn in range(2):
                for chat in chats[first : first + 20]:
                    chat.send(f"What is {first} times {turn}?").read()
            # What is measured of decodes now and then brings an object or two.
            grown.append({name: n for name, n in (living() - before).items() if n >= 20})
            claimed.append([(each.owner, each.name, each.predicted_bytes) for each in model.ledger])
    assert grown[1:] == [{"Message": 80, "Turn": 40}] * 2
    assert claimed[0] == claimed[1] == claimed[2]


@needs_kernels
def test_the_drafters_of_all_texts_share_one_list_of_tokens(tmp_path: Path) -> None:
    """The ledger has room for one list, which takes some bytes for each token of the vocabulary."""
    target = inspect(resolve_family("demo").target)
    draft = tmp_path / "draft.gguf"
    write_trimmed(resolve_family("demo").draft, draft, range(0, target.n_vocab, 3), target)
    before = living()["KeptTokens"]
    with edge_spec.load(target.path, draft=draft, speculation="sequence", engine="onnx", cache_dir=tmp_path) as model:
        model.generate_many(PROMPTS, seed=1, max_tokens=4).read()
        assert living()["KeptTokens"] == before + 1


def living() -> Counter[str]:
    """Count the objects of this package, by class."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    # Arrays of ctypes, which have classes of their own, come and go.
    own = (kind for kind in kinds if not issubclass(kind, ctypes.Array))
    return Counter(kind.__name__ for kind in own if str(kind.__module__).startswith("edge_spec."))
