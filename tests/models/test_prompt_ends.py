"""Laws of what stands around a prompt: one token that begins a text, and none that ends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from gguf import GGUFWriter
from made_tokenizers import SENTENCE_PIECE, byte_fallback

from edge_spec.generation.control_names import RenderedText
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models.json_tokenizer import JsonTokenizer

_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def of_llama(folder: Path, *, add_end: bool) -> PromptBuilder:
    path = folder / f"{add_end}.gguf"
    writer = GGUFWriter(path, "llama")
    for add, value in (("block_count", 1), ("context_length", 64), ("embedding_length", 32), ("head_count", 1)):
        getattr(writer, f"add_{add}")(value)
    writer.add_feed_forward_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abehlo"]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(add_end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return PromptBuilder(LlamaWeights(path, vocab_only=True), _TEMPLATE, len(tokens))


def of_json(folder: Path, *, add_end: bool) -> PromptBuilder:
    tokenizer = byte_fallback(folder, SENTENCE_PIECE)
    if add_end:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text("utf-8"))
        content["post_processor"]["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
        content["post_processor"]["special_tokens"]["</s>"] = {"id": "</s>", "ids": [2], "tokens": ["</s>"]}
        path.write_text(json.dumps(content), "utf-8")
        tokenizer = JsonTokenizer(path, bos=1, eos=2, ends=frozenset({2}))
    return PromptBuilder(tokenizer, _TEMPLATE, tokenizer.n_vocab)


Make = Callable[..., PromptBuilder]


@pytest.fixture(params=[of_llama, of_json])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def test_nothing_that_ends_a_text_stands_behind_a_prompt(make: Make, tmp_path: Path) -> None:
    plain = make(tmp_path, add_end=False)
    expected = {text: plain.tokens_of(text, raw=True) for text in ("hello", "a", "", "he </s>", "b</s>")}
    said = plain.tokens_of([{"role": "user", "content": "say </s>"}])
    adding = make(tmp_path, add_end=True)
    for text, tokens in expected.items():
        assert adding.tokens_of(text, raw=True) == tokens, text
        # What the text itself names stays.
        assert (tokens[-1] == 2) == text.endswith("</s>")
    assert adding.tokens_of([{"role": "user", "content": "say </s>"}]) == said


def test_a_text_that_names_its_beginning_has_one(make: Make, tmp_path: Path) -> None:
    prompts = make(tmp_path, add_end=False)
    for text in ("<s>hello", "<s>", "hello", "<s><s>a"):
        tokens = prompts.tokens_of(text, raw=True)
        assert tokens.count(1) == max(1, text.count("<s>")) and tokens[0] == 1, text
    # A name that a message only says is text, behind the token.
    assert prompts.tokenize(RenderedText.of("<s>a", {0}))[:1] == [1]
    assert prompts.tokenize(RenderedText.of("<s>a", {0})).count(1) == 1


def test_the_text_of_tokens_of_a_text_is_that_text(make: Make, tmp_path: Path) -> None:
    prompts = make(tmp_path, add_end=False)
    for text in ("hello", " hello", "  he a", "", "a b\n", "é"):
        for add_special in (True, False):
            assert prompts.detokenize(prompts.tokenize(text, add_special=add_special)) == text
