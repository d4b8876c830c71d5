"""Laws of the files of a training: weights, vocabulary, exported models."""

from __future__ import annotations

import json
import random
import zipfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from edge_spec.errors import ModelFileError
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect
from edge_spec.training.checkpoint import read_weights
from edge_spec.training.corpus import TEMPLATE, Document, Span, spans_of
from edge_spec.training.drafter.begun import begin_with
from edge_spec.training.sources import sources_of

CONVERSATION = [
    {"role": "user", "text": "Hi!"},
    {"role": "assistant", "text": "Hello, you."},
    {"role": "user", "text": "Bye."},
]


def test_files_that_are_not_finished_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"none")
    for path in (tmp_path / "weights.npz", tmp_path / "missing.npz"):
        with pytest.raises(ModelFileError):
            read_weights(path)


def _array(shape: str, kind: str = "<f2", content: bytes = b"") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_array(f"({1 << 40},)"), "Unable to allocate"),
        (_array("(2,)", "|O", b"cos\nsystem\n(S'id'\ntR."), "Object arrays cannot be loaded"),
        (b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "holds no trained weights"),
        (_array(f"({1 << 25},)", "|u1", bytes(1 << 25)), "unpacks to 32 MiB, more than it can hold"),
    ],
    ids=["larger than memory", "an object", "no expression", "grows"],
)
def test_weights_that_are_made_to_do_harm_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("shape.npy", content)
    with pytest.raises(ModelFileError, match=said) as refused:
        read_weights(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "null", '"x"', "{"])
def test_settings_of_a_run_that_are_damaged_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "begun.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"begun\.json is damaged"):
        begin_with(path, {"seed": 1})


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
