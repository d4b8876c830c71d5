"""Laws of long texts: tokenized in parts they are what they are as a whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from forked import forked

from edge_spec.llama_cpp.text_cutter import TextCutter
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import resolve_family


@pytest.fixture(scope="module", params=[False, True], ids=["no first token", "a first token"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaWeights]:
    """The demo family's vocabulary, as it is and with a token that begins every text."""
    raw = bytearray(resolve_family("demo").target.read_bytes())
    key = b"tokenizer.ggml.add_bos_token"
    raw[raw.index(key) + len(key) + 4] = request.param  # behind the type of the value
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    path.write_bytes(raw)
    found = LlamaWeights(path, vocab_only=True)
    assert len(found.tokenize("", add_special=True)) == request.param
    yield found
    found.close()


@pytest.mark.parametrize(("n_texts", "n_pieces"), [(50, 80), (1, 5000)], ids=["short", "long"])
def test_parts_of_a_text_have_its_tokens(weights: LlamaWeights, n_texts: int, n_pieces: int) -> None:
    """Short texts are tokenized whole, long ones in large parts; both are compared with the smallest parts."""
    names = [weights.name(token) for token in range(weights.n_vocab) if not weights.token_bytes(token)]
    small = TextCutter({name.encode(): False for name in names}, whole_bytes=0, least_bytes=8)
    pieces = [*filter(None, names), " ", "\n", "a", "<|im", "|>", "Once upon a time", "é", "🙂", "x" * 30]
    draw = random.Random(1)
    for _ in range(n_texts):
        text = "".join(draw.choices(pieces, k=n_pieces))
        parts = [part.decode() for part in small.parts(text.encode())]
        assert len(parts) > 5
        tokens = [token for n, part in enumerate(parts) for token in weights.tokenize(part, add_special=n == 0)]
        assert weights.tokenize(text, add_special=True) == tokens


def test_no_token_is_cut_in_two_nor_loses_its_space() -> None:
    found = TextCutter({b"<a>": False, b"x<a>y": False, b"<m>": True}, whole_bytes=0, least_bytes=1)
    assert [*found.parts(b"one<a>two x<a>y <m><a>")] == [b"one", b"<a>two ", b"x<a>y <m>", b"<a>"]
    found = TextCutter({b"<a>": False, b"x<a>y": True}, whole_bytes=0, least_bytes=1)
    assert [*found.parts(b"one<a>two x<a>y<a>")] == [b"one", b"<a>two x<a>y", b"<a>"]
    assert [*TextCutter({}, whole_bytes=0).parts(b"one<a>")] == [b"one<a>"]


def test_short_texts_and_short_parts_stay_whole() -> None:
    text = b"one<a>two<a>three<a>four"
    assert [*TextCutter({b"<a>": False}).parts(text)] == [text]
    assert [*TextCutter({b"<a>": False}, whole_bytes=len(text), least_bytes=1).parts(text)] == [text]
    found = TextCutter({b"<a>": False}, whole_bytes=len(text) - 1, least_bytes=6)
    assert [*found.parts(text)] == [b"one<a>two", b"<a>three", b"<a>four"]


def test_a_text_of_beginnings_costs_what_its_length_allows() -> None:
    """As in Gemma's vocabulary, where six thousand names begin alike."""
    names = {f"<unused{n}>".encode(): False for n in range(6000)}
    raw = b"<" * 200_000 + b"<unused17>"

    def work() -> None:
        cutter = TextCutter(names)
        assert [*cutter.parts(raw)] == [raw[:200_000], raw[200_000:]]
        assert cutter.finds_none(raw[:200_000])
        assert not cutter.finds_none(raw)

    assert not forked(work, seconds=60.0, computing_s=8).fault(most_bytes=1 << 40)


def test_the_library_looks_only_for_tokens_that_are_there(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = []
    as_it_is = weights.tokenize_as_it_is

    def recorded(raw: bytes, *, add_special: bool, controls: bool = True) -> list[int]:
        looked_for.append(controls)
        assert as_it_is(raw, add_special=add_special, controls=True) == as_it_is(
            raw, add_special=add_special, controls=controls
        )
        return as_it_is(raw, add_special=add_special, controls=controls)

    monkeypatch.setattr(weights, "tokenize_as_it_is", recorded)
    weights.tokenize("<" * 100 + "<|im_en", add_special=True)
    weights.tokenize("one<|im_end|>", add_special=True)
    assert looked_for == [False, True]
