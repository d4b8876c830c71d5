"""Laws of published ONNX models in use: the texts that come of them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from logits_rows import next_row, some_text
from lone_text import lone_text
from modes_agree import check_modes_agree, questions
from published_models import publish
from published_signatures import reference
from published_weights import Weights, read_weights

import edge_spec
from edge_spec.engines.onnx.opener import open_published
from edge_spec.engines.onnx.published_pool import PublishedPath
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import grammar_bytes
from edge_spec.errors import (
    BackendError,
    OutOfMemory,
    SettingsError,
    UnsupportedModel,
)
from edge_spec.models import inspect, resolve_family
from edge_spec.models.json_tokenizer import JsonTokenizer
from edge_spec.sampling.guidance import GuidedVocabulary
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

DEMO = resolve_family("demo")
assert DEMO.draft is not None
assert DEMO.intermediate is not None

Opener = Callable[..., PublishedPath]


@pytest.fixture(scope="module")
def family(published: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Published models of three sizes beside the GGUFs they were made of."""
    root = tmp_path_factory.mktemp("family")
    target, intermediate = read_weights(DEMO.target), read_weights(DEMO.intermediate)
    publish(root / "target-genai", target, "genai", four_bits=True)
    publish(root / "intermediate-plain", intermediate, "plain")
    publish(root / "intermediate-genai", intermediate, "genai", "float16", four_bits=True)
    return {
        "target-genai": root / "target-genai",
        "intermediate-plain": root / "intermediate-plain",
        "intermediate-genai": root / "intermediate-genai",
        "draft-plain": published("plain"),
        "draft-genai": published("genai-q4"),
        "target-gguf": DEMO.target,
        "intermediate-gguf": DEMO.intermediate,
        "draft-gguf": DEMO.draft,
    }


MIXES = [
    ("target-genai", "intermediate-genai", "draft-genai"),
    ("target-genai", "intermediate-gguf", "draft-plain"),
    ("intermediate-plain", "draft-genai", "draft-gguf"),
    ("target-gguf", "intermediate-plain", "draft-genai"),
]


@pytest.mark.parametrize("mix", MIXES, ids="+".join)
def test_text_is_identical_with_every_drafter(
    family: dict[str, Path], prompts: list[str], probe_cache: Path, mix: tuple[str, str, str]
) -> None:
    target, intermediate, draft = (family[name] for name in mix)
    engine = "llama" if mix[0].endswith("gguf") else "auto"

    def look(mode: str, model: edge_spec.TextModel) -> None:
        if model.identity != "bitwise":
            pytest.skip("on this device rows depend on how many are computed together")
        assert model.mode == mode
        assert model.profile.engine == ("llama" if engine == "llama" else "onnx")

    replies = check_modes_agree(
        ("off", "ngram", "sequence", "hierarchy"),
        questions(prompts[:3], (0, 0.9), max_tokens=32),
        look,
        target,
        draft=draft,
        intermediate=intermediate,
        engine=engine,
        cache_dir=probe_cache,
    )
    assert sum(reply.statistics.accepted for reply in replies["sequence"]) > 0


def test_a_published_model_follows_grammars_with_every_drafter(family: dict[str, Path], probe_cache: Path) -> None:
    properties = {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}}
    schema = {"properties": properties, "required": list(properties)}
    texts = {}
    for mode in ("off", "ngram", "sequence"):
        with edge_spec.load(
            family["target-genai"],
            draft=family["draft-genai"],
            speculation=mode,
            n_ctx=128,
            n_threads=1,
            cache_dir=probe_cache,
        ) as model:
            texts[mode] = model.generate("A dog:", json_schema=schema, seed=3, max_tokens=60).read()
            assert any(line.name == "grammars" for line in model.ledger)
            with pytest.raises(SettingsError):
                model.generate("A dog:", grammar='root ::= "a').read()
    assert set(json.loads(texts["off"])) == {"name", "old"}
    assert len(set(texts.values())) == 1


def test_grammars_of_all_threads_share_one_tokenizer_and_one_vocabulary(
    family: dict[str, Path], probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(name: str, kind: Any) -> Callable[..., Any]:
        def make(*args: Any, **values: Any) -> Any:
            made.append(name)
            if made.count("vocabulary") == 1 and name == "vocabulary":
                raise MemoryError
            sleep(0.05)
            return kind(*args, **values)

        return make

    monkeypatch.setattr("edge_spec.engines.tokenizers.JsonTokenizer", counted("tokenizer", JsonTokenizer))
    monkeypatch.setattr("edge_spec.sampling.guidance.GuidedVocabulary", counted("vocabulary", GuidedVocabulary))
    with edge_spec.load(
        family["target-genai"], speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache
    ) as model:
        held = model.ledger.held_bytes
        with pytest.raises(MemoryError):
            model.requests([[0]], grammar='root ::= "a"')
        assert model.ledger.held_bytes == held
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(lambda n: model.requests([[0]], grammar=f'root ::= "{n}"'), range(4)))
        assert made == ["tokenizer", "vocabulary", "vocabulary"]
        (line,) = (line for line in model.ledger if line.name == "grammars")
        assert line.predicted_bytes == grammar_bytes(model.n_vocab)


def test_a_published_model_writes_what_its_network_would(
    published: Callable[[str], Path], numbers: Weights, prompts: list[str], probe_cache: Path
) -> None:
    """At temperature 0 numbers that round differently only part at near ties, and these prompts have none."""
    texts = []
    with edge_spec.load(DEMO.draft, speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache) as model:
        expected_prompts = [model.prompt_of(prompt) for prompt in prompts[:2]]
    for name in ("plain", "genai"):
        with edge_spec.load(published(name), speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache) as model:
            assert [model.prompt_of(prompt) for prompt in prompts[:2]] == expected_prompts
            replies = [model.generate(prompt, max_tokens=20, temperature=0) for prompt in prompts[:2]]
            texts.append([(reply.read(), reply.token_ids, reply.finish_reason) for reply in replies])
            assert all(model.detokenize(tokens) == text for text, tokens, _ in texts[-1])
    assert texts[0] == texts[1]
    for prompt, (_, tokens, _) in zip(expected_prompts, texts[0], strict=True):
        rows = reference(numbers, [*prompt, *tokens], four_bits=False)[len(prompt) - 1 : -1]
        assert rows.argmax(-1).tolist() == tokens


# --- what is refused


def test_llama_cpp_does_not_run_graphs(published: Callable[[str], Path]) -> None:
    folder = published("plain")
    with pytest.raises(UnsupportedModel, match="target model: it is an ONNX graph"):
        edge_spec.load(folder, engine="llama")
    with pytest.raises(UnsupportedModel, match="draft model: it is an ONNX graph"):
        edge_spec.load(DEMO.target, draft=folder, draft_engine="llama")
    with pytest.raises(SettingsError, match="kv_k"):
        edge_spec.load(folder, kv_k="f16", speculation="off")


def test_a_context_beyond_memory_is_refused_before_anything_is_loaded(published: Callable[[str], Path]) -> None:
    with pytest.raises(OutOfMemory):
        edge_spec.load(published("genai"), n_ctx=1_000_000_000, cache_dir=None)


def test_prompts_are_read_in_chunks_that_bound_what_a_run_takes(open_it: Opener, published: Any) -> None:
    """Rows of 8192 logits are few bytes; the scores of long contexts and of more heads are not."""
    assert open_it("plain").settings.prefill_chunk == 512
    file = inspect(published("plain"))
    wide = ModelSettings(n_ctx=60_000, n_threads=1)
    model = lone_text(open_published(file, wide, cache_dir=None)[0])
    try:
        assert wide.max_rows <= model.settings.prefill_chunk < 512
        assert model.n_ctx == 60_000
    finally:
        model.close()


def test_a_graph_that_onnx_runtime_does_not_take_is_unsupported(
    numbers: Weights, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import onnx

    path = publish(tmp_path, numbers, "genai")
    whole = onnx.load(path, load_external_data=False)

    def refused(change: Callable[[Any], object]) -> str:
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        change(model)
        onnx.save(model, path)
        with pytest.raises(UnsupportedModel) as raised:
            open_published(inspect(path), ModelSettings(n_ctx=64, n_threads=1), cache_dir=None)
        assert "\n" not in str(raised.value)
        assert raised.value.hint
        return str(raised.value)

    def first(model: Any, operator: str) -> Any:
        return next(node for node in model.graph.node if node.op_type == operator)

    assert "FusedMagic" in refused(lambda model: setattr(first(model, "MatMul"), "op_type", "FusedMagic"))
    assert "org.strange" in refused(lambda model: setattr(first(model, "MatMul"), "domain", "org.strange"))
    assert "IR version" in refused(lambda model: setattr(model, "ir_version", 99))
    # What only shows when it runs: keys of three heads where the cache has one.
    shapes = refused(lambda model: setattr(first(model, "GroupQueryAttention").attribute[1], "i", 3))
    assert "cannot be run" in shapes or "cannot load" in shapes
    assert refused(lambda model: model.graph.initializer[0].dims.append(7))
    assert capfd.readouterr().out == ""


def test_a_failure_of_a_run_is_one_of_ours_and_passes(open_it: Opener) -> None:
    model = open_it("plain")
    model.prefill(some_text(10))
    before = next_row(model)
    with pytest.raises(BackendError):
        model.decode(Tree.sequence([99_999]))
    assert np.array_equal(before, next_row(model))
