"""Laws of training that do not take PyTorch: texts, rows, vocabulary, files, the command."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from few_libraries import run_with_few_libraries
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.engines.llama import LlamaWeights
from edge_spec.errors import ModelFileError, SettingsError
from edge_spec.generation.chat_template import render_chat
from edge_spec.models import inspect
from edge_spec.training.checkpoint import read_weights
from edge_spec.training.clock import Clock
from edge_spec.training.command import main
from edge_spec.training.corpus import TEMPLATE, Document, Span, clean, read_documents, read_records, spans_of
from edge_spec.training.packing import HEAD, ID, USER, Corpus, prepare
from edge_spec.training.requests import request_for
from edge_spec.training.settings import ROLES, SETTINGS, Shape, Training, setting_of
from edge_spec.training.sources import sources_of
from edge_spec.training.stages import Recipe

ROOT = Path(__file__).parents[2]
STORY = "Once there was a frog. The frog met a dog named Rex. The frog was happy."
CONVERSATION = [
    {"role": "user", "text": "Hi!"},
    {"role": "assistant", "text": "Hello, you."},
    {"role": "user", "text": "Bye."},
]


class LetterEncoder:
    """A token per letter, and one for the name of a special token."""

    def encode_spans(self, spans: Sequence[Span]) -> list[list[int]]:
        return [[1] if span.special else [10 + ord(letter) % 1000 for letter in span.text] for span in spans]


def write_records(path: Path, records: Sequence[object]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())


def documents(folder: Path, **arguments: object) -> list[Document]:
    return list(read_documents(folder, **{"limits": {}, "valid_share": 0.3, **arguments}))  # type: ignore[arg-type]


def records(n: int) -> list[dict[str, object]]:
    def turns(i: int) -> list[dict[str, str]]:
        words = {"user": f"What is {i}?", "assistant": f"It is {i * i}, I think."}
        return [{"role": role, "text": text} for role, text in words.items()]

    conversations = [{"source": "talk", "turns": turns(i)} for i in range(n)]
    return [
        *conversations,
        *({"source": "book", "title": "t", "text": f"Line {i}.\n\n" * (i % 7 + 1)} for i in range(n)),
    ]


def test_what_is_held_out_does_not_depend_on_order_or_on_other_records(tmp_path: Path) -> None:
    everything = records(60)
    sides = []
    for name, some in (
        ("all", everything),
        ("shuffled", random.Random(1).sample(everything, len(everything))),
        ("half", everything[::2]),
    ):
        (tmp_path / name).mkdir()
        write_records(tmp_path / name / "a.jsonl.xz", some[:30])
        write_records(tmp_path / name / "b.jsonl", some[30:])
        found = documents(tmp_path / name)
        sides.append({document.spans: document.held_out for document in found})
    assert sides[0] == sides[1]
    assert sides[2].items() <= sides[0].items()
    assert 0.1 < sum(sides[0].values()) / len(sides[0]) < 0.5


def test_no_text_is_read_twice_and_none_of_the_evaluation(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", [*records(8), *records(8)])
    assert len(documents(tmp_path)) == len({document.spans for document in documents(tmp_path)}) == 16
    skipped = documents(tmp_path, skip=["What is 3?\nIt is 9, I think."])
    assert len(skipped) == 15
    assert "What is 3?" not in {span.text for document in skipped for span in document.spans}


def test_limits_hold_per_source(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", records(50))
    found = Counter[str]()
    for document in documents(tmp_path, limits={"talk": 200}):
        found[document.source] += document.n_bytes
    assert 200 <= found["talk"] < 250
    assert found["book"] > 1000


@pytest.mark.parametrize("content", ["", "no json\n", '{"words": "none"}\n'])
def test_folders_without_texts_are_refused(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ModelFileError):
        documents(tmp_path)


def test_conversations_are_written_as_the_template_writes_them() -> None:
    messages = [{"role": turn["role"], "content": turn["text"]} for turn in CONVERSATION]
    expected = render_chat(TEMPLATE, messages, bos="", eos="")
    assert "".join(span.text for span in spans_of(CONVERSATION, answer=True)) == expected


@given(st.text())
def test_clean_text_is_clean_already_and_names_no_special_token(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    assert "<|" not in clean(text)


def test_cleaning_keeps_the_indentation_of_code() -> None:
    assert clean("def f(x):  \n    return  x\n\n\n\n\ty") == "def f(x):\n    return x\n\n\ty"


def test_placeholders_become_names() -> None:
    assert clean("I am [user 1's name], you are [User 2].", ("Ida", "Ben")) == "I am Ida, you are Ben."


def test_requests_name_what_the_story_is_about() -> None:
    asked = {request_for(STORY, random.Random(seed)) for seed in range(60)}
    about = {request for request in asked if "about" in request}
    assert about
    assert all("a frog" in request or "Rex" in request for request in about)
    assert len(asked) > len(about)


def prepared(folder: Path, n: int = 40, *, row: int = 64, weights: dict[str, float] | None = None) -> Corpus:
    write_records(folder / "a.jsonl", records(n))
    prepare(documents(folder, valid_share=0.2), LetterEncoder(), folder / "out")  # type: ignore[arg-type]
    return Corpus(folder / "out", row=row, weights=weights or {}, seed=3)


def texts_in(rows: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Counter[bytes]:
    """The documents of rows, by their tokens with flags; the fill at the end of rows left out."""
    found = Counter[bytes]()
    for row in rows:
        place = 0
        for end in np.flatnonzero((row & ID) == 0):
            if end > place:
                found[row[place : end + 1].tobytes()] += 1
            place = end + 1
    return found


def test_an_epoch_holds_every_document_as_often_as_its_weight_says(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, row=128, weights={"talk": 2.0})
    once = Counter[bytes]()
    tokens, offsets = (np.load(tmp_path / "out" / f"train_{what}.npy") for what in ("tokens", "offsets"))
    sources = np.load(tmp_path / "out" / "train_sources.npy")
    names = list(corpus.sources)
    for number, (begin, end) in enumerate(pairwise(offsets)):
        once[tokens[begin:end].tobytes()] += 2 if names[sources[number]] == "talk" else 1
    assert texts_in(corpus.batch(0, corpus.epoch_rows)) == once


def test_batches_depend_on_their_number_alone(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, weights={"talk": 1.5})
    n = corpus.epoch_rows
    straight = corpus.batch(0, 3 * n)
    again = Corpus(tmp_path / "out", row=64, weights={"talk": 1.5}, seed=3)
    for first in (2 * n + 1, 5, n - 2):
        assert np.array_equal(again.batch(first, 4), straight[first : first + 4])
    assert not np.array_equal(straight[:n], straight[n : 2 * n])


def test_frames_are_not_learned_and_users_are_marked(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", [{"source": "talk", "turns": CONVERSATION}])
    prepare(documents(tmp_path, valid_share=0.0), LetterEncoder(), tmp_path / "out")  # type: ignore[arg-type]
    tokens = np.load(tmp_path / "out" / "train_tokens.npy")
    encoded = LetterEncoder().encode_spans(spans_of(CONVERSATION))
    kinds = [kind for span, ids in zip(spans_of(CONVERSATION), encoded, strict=True) for kind in [span.kind] * len(ids)]
    flags = {"head": HEAD, "user": USER, "text": 0}
    assert (tokens & ~np.uint16(ID)).tolist() == [*(flags[kind] for kind in kinds), 0]


def test_bytes_per_token_are_those_of_the_held_out_rows(tmp_path: Path) -> None:
    rows, bytes_per_token = prepared(tmp_path, 200).valid(10_000)
    assert len(rows)
    n_bytes = int(np.load(tmp_path / "out" / "valid_bytes.npy").sum())
    assert bytes_per_token * np.count_nonzero((rows & HEAD) == 0) == pytest.approx(n_bytes)


@pytest.mark.parametrize(
    "record",
    ["5", "{}", '{"text": 5}', '{"turns": "x"}', '{"turns": [{"role": "user"}]}', '{"turns": [5]}', '{"text": null}'],
)
def test_a_record_of_another_form_is_named_by_its_line(tmp_path: Path, record: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + record + "\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"line 2 of .*a\.jsonl is not a valid record"):
        list(read_records(tmp_path / "a.jsonl"))


def test_settings_keep_the_family_in_its_proportions() -> None:
    def in_layers(shape: Shape) -> int:
        return shape.n_params - shape.n_vocab * shape.n_embd

    for name, setting in SETTINGS.items():
        target, intermediate, draft = (setting.shapes[role] for role in ROLES)
        if name != "small":
            assert target.n_params > 4.5 * intermediate.n_params
            # Most of a drafter is its embedding, and one that is too narrow guesses badly.
            assert in_layers(intermediate) > 4.5 * in_layers(draft)
            assert intermediate.n_params > 1.5 * draft.n_params
        assert draft.n_layers <= intermediate.n_layers <= target.n_layers
        assert all(shape.n_ctx >= setting.row and shape.n_vocab == setting.n_vocab for shape in setting.shapes.values())
    gpu = SETTINGS["gpu"]
    assert 50e6 < gpu.shapes["target"].n_params < 75e6
    # Layers at 4.5 bits, embeddings at 8.5, and the vocabulary three times.
    embeddings = sum(shape.n_vocab * shape.n_embd for shape in gpu.shapes.values())
    layers = sum(shape.n_params for shape in gpu.shapes.values()) - embeddings
    assert layers * 4.5 / 8 + embeddings * 8.5 / 8 + 3 * 300_000 < 45e6


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Shape(n_layers=1, n_embd=100, n_head=2, n_head_kv=1, n_ff=64, n_vocab=64, n_ctx=32),
        lambda: Shape(n_layers=1, n_embd=96, n_head=4, n_head_kv=1, n_ff=64, n_vocab=64, n_ctx=32),
        lambda: Training(tokens=10, step_tokens=64, micro_tokens=64, learning_rate=1e-3),
        lambda: setting_of("huge"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(wrong: object) -> None:
    with pytest.raises(SettingsError):
        wrong()  # type: ignore[operator]


def test_sources_that_are_not_known_do_not_get_a_licence() -> None:
    known, unknown = sources_of(["gsm8k-train", "somewhere"])
    assert (known.licence, unknown.licence) == ("MIT", "not stated")


def test_clocks_are_over_when_their_time_is() -> None:
    now = iter([5.0, 6.0, 15.0])
    clock = Clock(10, now=lambda: next(now))
    assert [clock.over, clock.over] == [False, True]
    assert not Clock().over


def test_training_is_imported_where_nothing_but_pytorch_and_numpy_is_installed() -> None:
    code = """
import pkgutil
from importlib import import_module
import edge_spec.training

for module in pkgutil.iter_modules(edge_spec.training.__path__, "edge_spec.training."):
    try:
        import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name != "torch":  # which the tests do without
            raise
for library in ("click", "tokenizers", "gguf", "llama_cpp", "onnxruntime", "psutil", "jinja2"):
    try:
        import_module(library)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{library} should have been hidden")
"""
    done = run_with_few_libraries(code)
    assert done.returncode == 0, done.stderr


def test_a_checkout_trains_without_being_installed() -> None:
    code = f"""
import runpy
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [folder for folder in sys.path if folder]
sys.argv = ["training", "--help"]
sys.path.insert(0, {str(ROOT / "training")!r})
runpy.run_path({str(ROOT / "training")!r}, run_name="__main__")
"""
    done = run_with_few_libraries(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--corpus" in done.stdout


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write_records(tmp_path / "texts" / "a.jsonl", records(5))
    code = f"""
sys.modules["torch"] = None
from edge_spec.training.command import main
sys.exit(main(["--corpus", {str(tmp_path / "texts")!r}, "--out", {str(tmp_path / "out")!r}, "--stage", "prepare"]))
"""
    done = run_with_few_libraries(code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "torch is not installed" in done.stderr and "edge-spec[training]" in done.stderr


def recipe(out: Path) -> Recipe:
    return Recipe(
        setting=SETTINGS["small"],
        texts=None,
        evaluation=None,
        out=out,
        seed=1,
        device="cpu",
        clock=Clock(),
        say=lambda line: None,
    )


@pytest.mark.parametrize(("old", "new"), [("middle", "intermediate"), ("middle-plain", "intermediate-plain")])
def test_folders_of_an_earlier_version_are_named_with_their_new_name(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / old).mkdir()
    with pytest.raises(SettingsError, match=f"{old} is from an earlier version; rename that folder to {new}$"):
        recipe(tmp_path)


def test_results_of_an_earlier_version_are_evaluated_again(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"models": {"target": {}, "middle": {}, "draft": {}}}))
    with pytest.raises(ModelFileError, match="is from an earlier version; run the stage evaluate again"):
        recipe(tmp_path).card()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "middle"], "there is no stage 'middle'; choose from prepare, target, samples, intermediate"),
        (["--steps", "middle=5"], "--steps 'middle=5' is not a valid number of steps"),
        (["--steps", "target=0"], "--steps 'target=0' is not a valid number of steps"),
        (["--setting", "huge"], "there is no setting 'huge'; choose one of small, cpu, gpu"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_spec.training.command._device", lambda name, threads: "cpu")
    assert main(["--out", str(tmp_path), *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"training: error: {said}") and err.count("\n") == 1


def test_files_that_are_not_finished_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"none")
    for path in (tmp_path / "weights.npz", tmp_path / "missing.npz"):
        with pytest.raises(ModelFileError):
            read_weights(path)


TRICKY = [
    "It's 12:45 on 3/14/2025; call 925-297-5127, OK?",
    "  two  spaces\n\n\nand\tlines \n x",
    "don't DON'T we'LL they've I'd",
    "naïve café — “quotes” … 中文 日本語 привет 🙂👩‍👩‍👧 ٣٤ ½ Ⅷ",
    "def f(x):\n    return {x: [1, 22, 333]}  # done",
    "<|im_start|>user\nHi 5<|im_end|>\n<|im_start|>assistant\n",
    "",
    " ",
    "\u00a0\u2003 \r\n\x00\x7f",
]


def test_llama_cpp_cuts_text_into_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from edge_spec.training.export import export
    from edge_spec.training.vocabulary import TextEncoder, make_vocabulary

    sources = [path.read_text("utf-8") for path in sorted(Path(__file__).parents[1].glob("*/*.py"))]
    texts = [Document("code", (Span(text, "text"),), True, len(text), False) for text in sources]
    vocabulary = tmp_path / "tokenizer.json"
    make_vocabulary(texts, n_vocab=1024, path=vocabulary)
    random_weights(tmp_path / "weights.npz")
    model = tmp_path / "model.gguf"
    export(tmp_path / "weights.npz", vocabulary, model, kind="F16", name="m", description="d", sources=sources_of("ab"))
    assert (inspect(model).n_vocab, inspect(model).chat_template) == (1024, TEMPLATE)

    weights = LlamaWeights(model, vocab_only=True)
    try:
        encoder = TextEncoder(vocabulary)
        scrambled = ["".join(random.Random(1).sample(text, min(len(text), 300))) for text in sources]
        for text in (*sources[:12], *TRICKY, *scrambled):
            ids = weights.tokenize(text, add_special=False)
            assert encoder.encode([text])[0] == ids, text
            assert encoder.text(ids) == text
        spans = spans_of(CONVERSATION)
        whole = "".join(span.text for span in spans)
        assert list(chain(*encoder.encode_spans(spans))) == weights.tokenize(whole, add_special=True)
        assert [weights.ends(token) for token in range(4)] == [True, False, True, False]
    finally:
        weights.close()


def random_weights(path: Path) -> None:
    """Weights in the form that a finished training leaves, drawn at random."""
    draw = np.random.default_rng(0)
    shape = {"n_layers": 1, "n_embd": 32, "n_head": 1, "n_head_kv": 1, "n_ff": 32, "n_vocab": 1024, "n_ctx": 64}
    arrays = {"token_embd.weight": (1024, 32), "output_norm.weight": (32,)}
    arrays |= {f"blk.0.{name}.weight": (32,) for name in ("attn_norm", "ffn_norm")}
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    arrays |= {f"blk.0.{name}.weight": (32, 32) for name in matrices}
    drawn = {name: draw.normal(0, 0.1, size).astype(np.float16) for name, size in arrays.items()}
    np.savez(path, shape=np.frombuffer(json.dumps(shape).encode(), np.uint8), **drawn)  # type: ignore[arg-type]
