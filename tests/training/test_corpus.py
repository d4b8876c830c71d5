"""Laws of the training text: what is read, held out, cleaned, packed into rows, and learned."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import ModelFileError
from edge_spec.generation.prompts import render_chat
from edge_spec.training.corpus import TEMPLATE, Document, Span, clean, read_documents, read_records, spans_of
from edge_spec.training.packing import HEAD, ID, USER, Corpus, prepare
from edge_spec.training.requests import request_for

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


def test_long_runs_of_spaces_are_read_once() -> None:
    assert clean(" " * 500_000 + "x" + "\t\u00a0" * 250_000 + "y \n" * 100_000) == "x " + "y\n" * 99_999 + "y"


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", "not valid JSONL .it is nested more than 256 levels"),
        ('{"text": "half \\ud800 of one"}', "line 2 .* half of a surrogate pair"),
        ('{"turns": [{"role": "user", "text": "\\udc80"}]}', "line 2 .* half of a surrogate pair"),
        ('{"text": "good", "source": "\\ud800"}', "line 2 .* half of a surrogate pair"),
    ],
)
def test_a_record_that_is_no_text_is_named_by_its_file(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=said) as refused:
        list(read_records(tmp_path / "a.jsonl"))
    assert "a.jsonl" in str(refused.value)


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "a.jsonl.xz", "wb", preset=0) as file:
        file.write(b'{"text": "')
        for _ in range(40):
            file.write(b"a" * (1 << 20))
    with pytest.raises(ModelFileError, match=r"line 1 of .* has more than 16 million characters"):
        list(read_records(tmp_path / "a.jsonl.xz"))


def test_a_packed_file_that_grows_without_end_is_left(tmp_path: Path) -> None:
    """Its lines are good, and more than anybody has written."""
    lines = (b'{"text": "' + b"good " * 400 + b'"}\n') * 500
    with lzma.open(tmp_path / "a.jsonl.xz", "wb", preset=0) as file:
        for _ in range(100):
            file.write(lines)
    assert (tmp_path / "a.jsonl.xz").stat().st_size < 1 << 16
    n_read = 0
    with pytest.raises(ModelFileError, match=r"a\.jsonl\.xz unpacks to more than 200 times its size"):
        for _ in read_records(tmp_path / "a.jsonl.xz"):
            n_read += 1
    assert 0 < n_read < 45_000
