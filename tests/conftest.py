"""What the laws are tried on: the demo family, loaded once, and random worlds of table models."""

from __future__ import annotations

import os

# Before NumPy is imported: the waiting threads of its BLAS spin, and take most of the processor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hybrid_files import HybridFiles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from letter_vocabulary import LetterGrammar, Letters
from lone_text import lone_text
from random_cases import Case, random_cases

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family

# The same examples on every machine and in every run, however slow it is.
settings.register_profile(
    "laws", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


settings.load_profile("laws")


def pytest_configure(config: pytest.Config) -> None:
    # Without arguments only what takes a minute; what is asked for by name is run.
    if config.args_source == config.ArgsSource.TESTPATHS and config.option.markexpr == "not slow":
        config.option.markexpr = "not slow and not long"


@pytest.fixture(scope="session")
def cases() -> st.SearchStrategy[Case]:
    """Random worlds, to be drawn from."""
    return random_cases()


@pytest.fixture(scope="session")
def letters() -> type[Letters]:
    """The vocabulary of table models."""
    return Letters


@pytest.fixture(scope="session")
def letter_grammar() -> type[LetterGrammar]:
    """A random grammar over the vocabulary of table models."""
    return LetterGrammar


@pytest.fixture(scope="session")
def probe_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where probe results and transcriptions are kept, for this run of the tests only."""
    folder = tmp_path_factory.mktemp("home") / "edge-spec"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """What a model can do is found out to the end, however busy the computer is; a busy one has its own laws."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("edge_spec.engines.probe_records._LIMIT_S", float("inf"))
        yield


@pytest.fixture(scope="session")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> HybridFiles:
    """Small models with recurrent layers."""
    return HybridFiles(tmp_path_factory.mktemp("hybrids"))


@pytest.fixture(scope="session")
def weights() -> Iterator[Callable[[str], LlamaWeights]]:
    """The demo family's weights by role (target, intermediate, draft), loaded when first asked for."""
    loaded: dict[str, LlamaWeights] = {}

    def load(role: str) -> LlamaWeights:
        if role not in loaded:
            loaded[role] = LlamaWeights(getattr(resolve_family("demo"), role))
        return loaded[role]

    yield load
    for each in loaded.values():
        each.close()


@pytest.fixture(scope="session")
def open_demo(weights: Callable[[str], LlamaWeights], probe_cache: Path) -> Iterator[Callable[..., LlamaPath]]:
    """Opens a context over a demo model, the same one for the same settings; it may hold an earlier text."""
    opened: dict[Any, LlamaPath] = {}

    def open_it(role: str = "target", *, fresh: bool = False, **values: Any) -> LlamaPath:
        key = (role, len(opened) if fresh else -1, tuple(sorted(values.items())))
        if key not in opened:
            values = {"n_ctx": 640, "n_threads": 1} | values
            file = inspect(getattr(resolve_family("demo"), role)).fingerprint
            opened[key] = lone_text(
                open_llama(weights(role), LlamaSettings(**values), file=file, cache_dir=probe_cache)[0]
            )
        return opened[key]

    yield open_it
    for model in opened.values():
        model.close()


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Texts to continue, of different kinds and lengths."""
    return [
        "Once upon a time",
        "Can you help me find a table for two in the old town, please?",
        "def area(width, height):\n    return",
        "The capital of France is Paris. The capital of Italy is Rome. The capital of",
        "Zwölf Boxkämpfer — 東京 🙂",
        "A",
    ]


@pytest.fixture(scope="session")
def surroundings(probe_cache: Path) -> dict[str, str]:
    """An environment in which the command keeps its caches where the other tests keep them."""
    home = str(probe_cache.parent)
    users = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    return {**users, "HOME": home, "XDG_CACHE_HOME": home, "LOCALAPPDATA": home}
