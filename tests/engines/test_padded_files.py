"""Laws of vocabularies that differ by padding or reserved tokens: they are pairs, and drafts change no token."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import N_VOCAB, write_gguf
from padded_files import NORMAL, write_padded

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import VocabularyMismatch
from edge_spec.models import check_pair, inspect, kept_tokens, resolve_family

ENGINES = ["llama", *(["onnx"] if available() is None else [])]
CUT = 350


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network with tables of several sizes: as its own drafter it is nearly always right."""
    folder = tmp_path_factory.mktemp("padded")
    source, reserved = write_gguf(folder / "source.gguf"), range(CUT, N_VOCAB)
    return {
        "target": source,
        "draft": source,
        "wide target": write_padded(source, folder / "wide-target.gguf", 448),
        "reserving target": write_padded(source, folder / "reserving.gguf", N_VOCAB, reserve=reserved),
        "wide draft": write_padded(source, folder / "wide-draft.gguf", 416),
        "cut draft": write_padded(source, folder / "cut-draft.gguf", CUT),
        "renamed draft": write_padded(source, folder / "new.gguf", 416, reserve=reserved, name="<|new_{}|>", kind=3),
    }


PAIRS = [
    ("target", "wide draft"),
    ("wide target", "draft"),
    ("wide target", "wide draft"),
    ("reserving target", "cut draft"),
    ("reserving target", "renamed draft"),
]


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("of_target", "of_draft"), PAIRS[2:])
def test_text_is_identical_with_and_without_drafts(
    engine: str, of_target: str, of_draft: str, files: dict[str, Path], probe_cache: Path, prompts: list[str]
) -> None:
    texts: dict[str, list[list[int]]] = {}
    accepted = 0
    for mode in ("off", "tree", "hierarchy"):
        with edge_spec.load(
            files[of_target],
            draft=files[of_draft],
            intermediate=files[of_draft],
            speculation=mode,
            engine=engine,
            n_ctx=256,
            n_threads=1,
            cache_dir=probe_cache,
        ) as model:
            assert model.mode == mode
            for number, prompt in enumerate(prompts[:2]):
                reply = model.generate(prompt, max_tokens=60, seed=number, temperature=number, ignore_eos=True)
                reply.read()
                texts.setdefault(mode, []).append(list(reply.token_ids))
                accepted += reply.statistics.accepted
    assert texts["off"] == texts["tree"] == texts["hierarchy"]
    assert accepted > 60
    # Tokens that the drafter does not know are among them.
    unknown = {"wide target": N_VOCAB, "reserving target": CUT}[of_target]
    assert any(token >= unknown for text in texts["off"] for token in text)


def test_ids_that_mean_the_same_are_kept_and_others_are_told_as_a_spare_token(files: dict[str, Path]) -> None:
    found = kept_tokens(inspect(files["reserving target"]), inspect(files["renamed draft"]))
    assert found is not None
    assert found.ids.tolist() == [*range(CUT)]
    spare = set(found.own_ids[CUT:].tolist())
    assert len(spare) == 1 and spare < set(range(CUT))
    wide = kept_tokens(inspect(files["target"]), inspect(files["wide draft"]))
    assert wide is not None
    assert wide.own_ids.tolist() == [*range(N_VOCAB)]
    # Whatever the target picks, the drafter is told an id of its own table.
    for target, draft in PAIRS:
        kept = kept_tokens(inspect(files[target]), inspect(files[draft]))
        n_draft, n_target = inspect(files[draft]).n_vocab, inspect(files[target]).n_vocab
        assert kept is not None and len(kept.own_ids) == n_target
        assert kept.own_ids.min() >= 0 and kept.own_ids.max() < n_draft
        assert kept.ids.max() < n_target


def test_models_of_the_same_table_keep_all(files: dict[str, Path]) -> None:
    assert kept_tokens(inspect(files["target"]), inspect(files["draft"])) is None


def test_a_difference_between_ordinary_tokens_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    target = inspect(files["target"])
    other = inspect(write_padded(files["draft"], tmp_path / "o.gguf", 416, reserve=range(300, 301), kind=NORMAL))
    with pytest.raises(
        VocabularyMismatch, match=r"416 and 384 tokens, and token 300 is '\[PAD300\]' in one and '▁w41'"
    ):
        check_pair(target, other)
    longer = inspect(write_padded(files["draft"], tmp_path / "longer.gguf", 386, name="word{}", kind=NORMAL))
    with pytest.raises(VocabularyMismatch, match="386 and 384 tokens, and token 384 is 'word384' in one only"):
        check_pair(target, longer)
    # A text that the target writes and the drafter has nothing for.
    with pytest.raises(VocabularyMismatch, match="350 and 384 tokens, and token 350 is '▁w91' in one only"):
        check_pair(target, inspect(files["cut draft"]))
    with pytest.raises(VocabularyMismatch, match="tokenizers are 'gpt2' and 'llama'"):
        check_pair(target, inspect(resolve_family("demo").target))


def test_reserved_tokens_alone_do_not_make_a_pair(files: dict[str, Path], tmp_path: Path) -> None:
    reserved = range(300, N_VOCAB)
    target = inspect(write_padded(files["target"], tmp_path / "target.gguf", N_VOCAB, reserve=reserved))
    names = inspect(write_padded(files["target"], tmp_path / "d.gguf", N_VOCAB, reserve=reserved, name="<unused{}>"))
    with pytest.raises(VocabularyMismatch, match=r"token 300 is '<unused300>' in one and '\[PAD300\]' in the other"):
        check_pair(target, names)
