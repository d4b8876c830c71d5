"""Laws of drafters with trimmed vocabularies as files: they change no token, on any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import write_gguf
from modes_agree import check_modes_agree
from trimmed_files import write_trimmed

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import UnsupportedModel, VocabularyMismatch
from edge_spec.models import check_pair, inspect, kept_tokens, resolve_family

pytestmark = pytest.mark.long

ENGINES = ["llama", *(["onnx"] if available() is None else [])]
MODES = ("off", "sequence", "tree", "hierarchy", "auto")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}}


@pytest.fixture(scope="module")
def kept() -> list[int]:
    """A random half of the demo family's rarer tokens, and the more frequent ones."""
    rare = np.random.default_rng(7).choice(np.arange(3000, 8192), 2600, replace=False)
    return sorted([*range(1, 3000, 2), *range(0, 600, 2), *map(int, rare)])


@pytest.mark.parametrize("engine", ENGINES)
def test_text_is_identical_with_trimmed_drafters(
    engine: str, kept: list[int], tmp_path: Path, probe_cache: Path, prompts: list[str]
) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    assert family.intermediate is not None
    target = inspect(family.target)
    draft = write_trimmed(family.draft, tmp_path / "draft.gguf", kept, target)
    intermediate = write_trimmed(family.intermediate, tmp_path / "intermediate.gguf", kept[::2], target)
    asked: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": 40, "seed": number, "temperature": temperature}
        for number, (prompt, temperature) in enumerate(zip(prompts, (0, 0.9, 1.3, 0.7, 0, 1), strict=True))
    ]
    asked[2]["json_schema"] = SCHEMA

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.mode == ("hierarchy" if mode == "auto" else mode)

    replies = check_modes_agree(
        MODES,
        asked,
        look,
        family.target,
        draft=draft,
        intermediate=intermediate,
        engine=engine,
        cache_dir=probe_cache,
    )
    assert sum(reply.statistics.accepted for found in replies.values() for reply in found) > 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_drafter_that_keeps_all_tokens_drafts_what_the_whole_one_drafts(
    engine: str, tmp_path: Path, probe_cache: Path
) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    everything = write_trimmed(family.draft, tmp_path / "all.gguf", range(8192), inspect(family.target))
    found = []
    for draft in (family.draft, everything):
        with edge_spec.load(
            family.target,
            draft=draft,
            speculation="tree",
            engine=engine,
            n_ctx=256,
            n_threads=1,
            cache_dir=probe_cache,
        ) as model:
            reply = model.generate("Tell me a story.", max_tokens=60, seed=4, temperature=0.8)
            reply.read()
            found.append((list(reply.token_ids), reply.statistics.drafted, reply.statistics.accepted))
    assert found[0] == found[1]
    assert found[0][2] > 10


def test_the_list_of_tokens_must_fit_the_target(tmp_path: Path) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    target, draft = inspect(family.target), family.draft
    good = inspect(write_trimmed(draft, tmp_path / "good.gguf", [3, 5, 900], target))
    check_pair(target, good)
    kept = kept_tokens(target, good)
    assert kept is not None
    assert kept.ids.tolist() == [3, 5, 900]
    assert kept_tokens(target, inspect(draft)) is None
    other = inspect(write_trimmed(draft, tmp_path / "other.gguf", [3, 5], target, vocabulary="0" * 32))
    with pytest.raises(VocabularyMismatch, match=r"other\.gguf cannot draft .*tokens of another vocabulary") as caught:
        check_pair(target, other)
    assert "drafter make" in str(caught.value.hint)
    mixed = inspect(write_trimmed(draft, tmp_path / "mixed.gguf", [5, 3], target))
    with pytest.raises(VocabularyMismatch, match="ascending"):
        check_pair(target, mixed)
    small = inspect(write_gguf(tmp_path / "small.gguf"))
    beyond = inspect(write_trimmed(draft, tmp_path / "beyond.gguf", [3, 8191], small))
    with pytest.raises(VocabularyMismatch, match=r"8191, and the vocabulary has 384 tokens"):
        check_pair(small, beyond)


def test_a_list_of_another_length_than_the_embedding_is_refused(tmp_path: Path) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    target = inspect(family.target)
    path = write_trimmed(family.draft, tmp_path / "draft.gguf", [3, 5, 900], target)
    raw = path.read_bytes()
    place = raw.index(b"edge_spec.target_tokens") + len("edge_spec.target_tokens")
    # The element type and the number of elements follow the type of the value; an array of bytes takes the same room.
    assert gguf.GGUFValueType(int.from_bytes(raw[place + 4 : place + 8], "little")) == gguf.GGUFValueType.UINT32
    changed = raw[: place + 4] + (0).to_bytes(4, "little") + (12).to_bytes(8, "little") + raw[place + 16 :]
    path.write_bytes(changed)
    with pytest.raises(VocabularyMismatch, match="12 ids, where 3 are needed"):
        check_pair(target, inspect(path))


def test_a_trimmed_drafter_writes_no_text_itself(tmp_path: Path) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    path = write_trimmed(family.draft, tmp_path / "draft.gguf", [3, 5, 900], inspect(family.target))
    with pytest.raises(UnsupportedModel, match="only drafts") as caught:
        edge_spec.load(path)
    assert "`draft`" in str(caught.value.hint)
