"""Laws of tokenizers of published models: they read and write as llama.cpp and their own library do."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from made_tokenizers import SENTENCE_PIECE, byte_fallback, special_token

from edge_spec.errors import (
    EdgeSpecError,
    UnsupportedModel,
)
from edge_spec.generation.thoughts import THOUGHTS
from edge_spec.generation.tools.syntax import FORMS
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family
from edge_spec.models.json_tokenizer import JsonTokenizer
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.tokens.shown import SHOWN

DRAFT = resolve_family("demo").draft
assert DRAFT is not None


TEXTS = [
    "Once upon a time, there was a dog.",
    "Zwölf Boxkämpfer — 東京 🙂 don't",
    "  two  spaces\n\n\ttabs 1234567",
    "<|im_start|>user\nHi<|im_end|>\n",
    "",
]


def open_tokenizer(folder: Path) -> JsonTokenizer:
    graph = inspect(folder).graph
    assert graph is not None
    return JsonTokenizer(graph.folder / "tokenizer.json", bos=graph.bos, eos=graph.eos, ends=graph.ends)


def test_a_tokenizer_reads_and_writes_like_llama_cpp_with_the_same_tokens(made: dict[str, Path]) -> None:
    ours, theirs = open_tokenizer(made["plain"]), LlamaWeights(DRAFT, vocab_only=True)
    try:
        for text in TEXTS:
            for special in (False, True):
                assert ours.tokenize(text, add_special=special) == theirs.tokenize(text, add_special=special), text
        for token in range(8192):
            assert ours.token_bytes(token) == theirs.token_bytes(token), token
            assert ours.name(token) == theirs.name(token), token
        assert [ours.bos, ours.eos, ours.adds_bos] == [theirs.bos, theirs.eos, theirs.adds_bos]
        assert ours.name(-1) == ""
    finally:
        theirs.close()


def test_a_grammar_allows_the_tokens_that_it_allows_of_the_gguf(made: dict[str, Path]) -> None:
    theirs, ours = LlamaWeights(DRAFT, vocab_only=True), open_tokenizer(made["plain"])
    everything = range(theirs.n_vocab)
    lark = gbnf_to_lark('root ::= ("yes" | "no, " [a-zäß ]+ "\\n")? [^x]{2}')
    states = [GuidedGrammar(GuidedVocabulary(tokenizer), lark).start() for tokenizer in (theirs, ours)]
    seen = 0
    for token in theirs.tokenize("no, straße und\nok", add_special=False):
        expected, found = (np.array(state.allowed(everything)) for state in states)
        assert np.array_equal(expected, found)
        seen += expected.sum()
        if not expected[token]:
            continue
        following = [state.after(token) for state in states]
        assert all(state is not None for state in following)
        states = [state for state in following if state is not None]
    assert seen > 10
    theirs.close()


def test_a_tokenizer_with_bytes_to_fall_back_on_streams_every_text(tmp_path: Path) -> None:
    import tokenizers

    ours = byte_fallback(tmp_path, SENTENCE_PIECE)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.adds_bos
    for text in ("a bald hello, world.", "Zwölf 東京 🙂", " a  b", "he he"):
        tokens = ours.tokenize(text, add_special=True)
        assert tokens[0] == 1
        pieces = b"".join(map(ours.token_bytes, tokens))
        # What follows a prompt keeps its first space; a whole text loses the one that was put before it.
        assert pieces.decode() == ours.text(tokens) == " " + text
        assert library.decode(tokens) == text
    assert ours.name(1) == "<s>"
    assert ours.token_bytes(1) == b""
    assert ours.token_bytes(999) == b""
    assert ours.ends(2)
    assert not ours.ends(1)


def test_pieces_of_a_reply_make_up_the_text_that_the_library_decodes(made: dict[str, Path]) -> None:
    import tokenizers

    ours = open_tokenizer(made["genai"])
    library = tokenizers.Tokenizer.from_file(str(made["genai"] / "tokenizer.json"))
    rng = random.Random(1)
    for _ in range(50):
        tokens = [rng.randrange(8192) for _ in range(30)]
        pieces = b"".join(ours.token_bytes(token) for token in tokens)
        assert pieces.decode("utf-8", "replace") == ours.text(tokens) == library.decode(tokens)


def test_a_tokenizer_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="decoder is 'CTC'"):
        byte_fallback(tmp_path, [{"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": True}])
    pattern = {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}
    with pytest.raises(UnsupportedModel, match="not understood"):
        byte_fallback(tmp_path, [pattern])
    longer = [{"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 9}] * 2
    with pytest.raises(UnsupportedModel, match="its decoder can make a token 81 times as long"):
        byte_fallback(tmp_path, longer)
    byte_fallback(tmp_path, longer[:1])
    for content in ("{}", "nothing", '{"model": {"type": "Unheard"}}', "\ud800"):
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be used"):
            JsonTokenizer(path, bos=-1, eos=-1, ends=frozenset())


def test_a_text_that_is_no_unicode_is_refused(made: dict[str, Path]) -> None:
    with pytest.raises(EdgeSpecError, match="not Unicode at character 1"):
        open_tokenizer(made["plain"]).tokenize("a\ud800", add_special=True)


def test_marks_that_are_special_tokens_are_text_to_readers_unless_they_end_a_reply(tmp_path: Path) -> None:
    byte_fallback(tmp_path, SENTENCE_PIECE).close()
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    first = len(content["model"]["vocab"])
    names = ["<|channel|>", "<|end|>", "<|return|>", "[THINK]"]
    for token, name in enumerate(names, first):
        content["model"]["vocab"][name] = token
        content["added_tokens"].append(special_token(token, name))
    path.write_text(json.dumps(content), "utf-8")
    for ends, shown in ((2, [True, True, False, True]), (first + 1, [True, False, False, True])):
        tokenizer = JsonTokenizer(path, bos=1, eos=2, ends=frozenset((ends,)))
        tokens = tokenizer.tokenize("".join(names), add_special=False)
        assert tokens == list(range(first, first + 4))
        read = [name if is_shown else "" for name, is_shown in zip(names, shown, strict=True)]
        assert [tokenizer.token_bytes(token).decode() for token in tokens] == read
        assert set(names) <= set(tokenizer.control_names)
        # What a message says stays text.
        assert not {*tokenizer.tokenize("".join(names), add_special=False, controls=False)} & {*tokens}
        tokenizer.close()


def test_every_mark_of_thoughts_and_calls_is_shown() -> None:
    written = "".join(form.opening + form.middle + form.forced + form.closing for form in FORMS)
    written += "".join(marks.opening + marks.closing + marks.between + marks.answer for marks in THOUGHTS)
    marks = re.findall(r"</?[a-z_]+>|<\|[a-z_]+\|?>|<[a-z_]+\|>|\[/?[A-Z_]+\]", written)
    assert {*marks} | {'<|"|>', "<|start|>", "<|constrain|>"} == SHOWN
