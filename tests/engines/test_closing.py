"""Laws of closing: what is closed frees its memory at once, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_text import lone_text
from onnxruntime import InferenceSession, IOBinding, OrtValue

import edge_spec
from edge_spec.engines.base import Engine
from edge_spec.engines.onnx.session import KVCache, Session
from edge_spec.engines.registry import engines, settings_of
from edge_spec.memory import usage
from edge_spec.models import inspect, resolve_family
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

DRAFT = resolve_family("demo").draft
HEAVY = (InferenceSession, IOBinding, OrtValue, KVCache, Session)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def heavy() -> list[object]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), HEAVY)]


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_a_closed_model_holds_no_session_and_no_rows(engine: Engine, probe_cache: Path) -> None:
    assert DRAFT is not None
    file, before = inspect(DRAFT), len(heavy())
    closed, arrays = [], []
    for _ in range(30):
        opener = engine.opener(cache_dir=probe_cache)
        model = lone_text(opener.open(file, settings_of(64, {"n_threads": 1})).pool)
        rows = model.decode(Tree.sequence([300, 301]))
        while rows.base is not None and hasattr(rows.base, "base"):
            rows = rows.base
        arrays.append(weakref.ref(rows))
        del rows
        model.close()
        opener.close()
        # The model itself may well be referred to.
        closed.append(model)
    assert [array() for array in arrays] == [None] * 30
    assert len(heavy()) == before


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_nothing_of_a_model_that_was_closed_waits_for_the_collector(engine: Engine, probe_cache: Path) -> None:
    assert DRAFT is not None
    file, things = inspect(DRAFT), []
    for _ in range(30):
        opener = engine.opener(cache_dir=probe_cache)
        opened = opener.open(file, settings_of(64, {"n_threads": 1}))
        tokenizer = opener.tokenizer(file)
        assert tokenizer.text(tokenizer.tokenize("Once upon a time", add_special=False)).strip() == "Once upon a time"
        grammars = GuidedVocabulary(tokenizer)
        state = GuidedGrammar(grammars, gbnf_to_lark('root ::= "yes" | "no"')).start()
        following = state.after(tokenizer.tokenize("n", add_special=False)[-1])
        assert state.forced(4) == [] and following is not None and following.forced(4)
        things += [weakref.ref(thing) for thing in (opener, opened.pool, tokenizer, grammars, state)]
        opened.pool.close()
        opener.close()
        del opener, opened, tokenizer, grammars, state, following
    assert [thing() for thing in things] == [None] * len(things)


@pytest.mark.parametrize("mode", ["off", "hierarchy"])
def test_a_closed_family_holds_no_session(mode: str, probe_cache: Path) -> None:
    before = len(heavy())
    models = []
    for _ in range(5):
        model = edge_spec.load("demo", speculation=mode, n_ctx=64, n_threads=1, cache_dir=probe_cache)
        model.generate("Once", max_tokens=4).read()
        model.close()
        models.append(model)
    assert len(heavy()) == before


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_opening_and_closing_takes_no_memory(engine: Engine, probe_cache: Path) -> None:
    file = inspect(resolve_family("demo").target)
    held = []
    for _ in range(8):
        opener = engine.opener(cache_dir=probe_cache)
        model = lone_text(opener.open(file, settings_of(256, {"n_threads": 1})).pool)
        model.decode(Tree.sequence([300, 301]))
        model.close()
        opener.close()
        held.append(usage().resident_bytes)
    # The first ones fill what libraries keep. One model left open would be more than its weights, 5 MiB.
    assert max(held[4:]) - held[3] < 1 << 20, held


@pytest.mark.slow
@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_a_hundred_families_leave_no_memory(engine: Engine, probe_cache: Path) -> None:
    held = []
    for _ in range(100):
        settings = {"n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache}
        with edge_spec.load("demo", engine=engine.name, speculation="hierarchy", **settings) as model:
            model.generate("Once", max_tokens=8).read()
        gc.collect()
        held.append(usage().resident_bytes)
    assert held[-1] - held[9] < 4 << 20
