"""Laws of published ONNX models on disk: what is recognised, what is refused and how, and their tokenizers."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from published_models import Weights, publish, read_weights

from edge_spec.engines.llama.external_vocabulary import ExternalVocabulary
from edge_spec.engines.llama.grammar import LlamaGrammar
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.registry import engine, settings_of
from edge_spec.errors import (
    EdgeSpecError,
    ModelNotFound,
    NotAModel,
    TruncatedModel,
    UnsupportedModel,
    VocabularyMismatch,
)
from edge_spec.models import check_pair, inspect, resolve, resolve_family
from edge_spec.models.json_tokenizer import JsonTokenizer, loading_peak_bytes, tokenizer_bytes
from edge_spec.models.onnx.tokens import read_tokens, size_of_tokenizer

DRAFT = resolve_family("demo").draft
assert DRAFT is not None


@pytest.fixture(scope="module")
def weights_of_draft() -> Weights:
    return read_weights(DRAFT)


@pytest.fixture(scope="module")
def made(weights_of_draft: Weights, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("published")
    publish(root / "plain", weights_of_draft, "plain")
    publish(root / "genai", weights_of_draft, "genai", "float16", four_bits=True)
    return {"plain": root / "plain", "genai": root / "genai"}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(style: str) -> Path:
        return Path(shutil.copytree(made[style], tmp_path / style))

    return copy


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


# --- what is recognised


@pytest.mark.parametrize("style", ["plain", "genai"])
def test_a_folder_says_the_same_as_the_gguf_it_was_made_of(made: dict[str, Path], style: str) -> None:
    file, source = inspect(resolve(made[style])), inspect(DRAFT)
    for name in ("n_layers", "n_embd", "n_head", "n_head_kv", "head_dim_k", "head_dim_v", "n_ctx_train", "n_vocab"):
        assert getattr(file, name) == getattr(source, name), name
    assert file.vocabulary.tokens_hash == source.vocabulary.tokens_hash
    assert file.chat_template == source.chat_template
    assert file.graph is not None
    assert (file.graph.bos, file.graph.eos, file.graph.ends) == (0, 2, {0, 2})
    assert file.graph.in_place == (style == "genai")
    assert file.graph.cache_kind == ("float16" if style == "genai" else "float32")
    assert file.quantisation == ("int4" if style == "genai" else "float32")
    sizes = [path.stat().st_size for path in file.path.parent.glob("*data")]
    assert 0 <= file.weight_bytes - sum(sizes) < file.path.stat().st_size
    check_pair(source, file)
    check_pair(file, source)


def test_a_folder_of_links_as_a_hub_keeps_it_is_read_alike(made: dict[str, Path], tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    for number, path in enumerate(sorted(path for path in made["plain"].rglob("*") if path.is_file())):
        blob = tmp_path / f"blob{number}"
        shutil.copy(path, blob)
        link = linked / path.relative_to(made["plain"])
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(blob)
        except OSError:
            pytest.skip("links cannot be made here")
    assert inspect(linked).fingerprint == inspect(made["plain"]).fingerprint


def test_a_folder_with_several_graphs_means_the_one_in_four_bits(weights_of_draft: Weights, tmp_path: Path) -> None:
    publish(tmp_path, weights_of_draft, "plain", name="model.onnx")
    quantised = publish(tmp_path, weights_of_draft, "plain", four_bits=True, name="model_q4.onnx")
    assert resolve(tmp_path) == quantised
    for name in ("a", "b"):
        (quantised.parent / f"model{name}.onnx").write_bytes(quantised.read_bytes())
    for path in (quantised, quantised.with_name("model.onnx")):
        path.unlink()
    with pytest.raises(UnsupportedModel, match="several graphs"):
        resolve(tmp_path)


def test_the_fingerprint_follows_weights_graph_and_nothing_else(copied: Callable[[str], Path]) -> None:
    folder = copied("plain")
    before = inspect(folder).fingerprint
    edit(folder / "config.json", note="other")
    assert inspect(folder).fingerprint == before
    data = folder / "onnx" / "model.onnx_data"
    raw = data.read_bytes()
    data.write_bytes(raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2))
    assert inspect(folder).fingerprint != before


def test_another_vocabulary_is_told_by_its_first_token(copied: Callable[[str], Path]) -> None:
    folder = copied("genai")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = settings["model"]["vocab"]
    vocab["someword"] = vocab.pop(next(text for text, token in vocab.items() if token == 700))
    (folder / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    for pair in ((inspect(DRAFT), inspect(folder)), (inspect(folder), inspect(DRAFT))):
        with pytest.raises(VocabularyMismatch, match=r"token 700 is .*someword"):
            check_pair(*pair)


def test_ids_without_a_text_are_named_as_a_conversion_names_them(copied: Callable[[str], Path]) -> None:
    """Embeddings are often padded beyond the tokens; a GGUF calls these [PAD...]."""
    folder = copied("genai")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = settings["model"]["vocab"]
    last = next(text for text, token in vocab.items() if token == 8191)
    del vocab[last]
    settings["model"]["merges"] = [merge for merge in settings["model"]["merges"] if merge.replace(" ", "") != last]
    (folder / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(VocabularyMismatch, match=r"token 8191 is '\[PAD8191\]'"):
        check_pair(inspect(DRAFT), inspect(folder))


@pytest.mark.parametrize("place", ["jinja", "json", "list"])
def test_the_chat_template_is_found_where_exporters_put_it(copied: Callable[[str], Path], place: str) -> None:
    folder = copied("plain")
    edit(folder / "tokenizer_config.json", chat_template="old")
    if place == "jinja":
        (folder / "chat_template.jinja").write_text("new", "utf-8")
    elif place == "json":
        (folder / "chat_template.json").write_text('{"chat_template": "new"}', "utf-8")
    else:
        templates = [{"name": "tools", "template": "old"}, {"name": "default", "template": "new"}]
        edit(folder / "tokenizer_config.json", chat_template=templates)
    assert inspect(folder).chat_template == "new"


# --- what is refused


def _shorten(path: Path, n: int) -> None:
    path.write_bytes(path.read_bytes()[:n])


Break = Callable[[Path], object]
BAD: list[tuple[str, str, Break, type[EdgeSpecError], str]] = [
    (
        "no data",
        "plain",
        lambda f: (f / "onnx/model.onnx_data").unlink(),
        ModelNotFound,
        "model.onnx_data holds weights .* and is missing",
    ),
    ("short data", "plain", lambda f: _shorten(f / "onnx/model.onnx_data", 999), TruncatedModel, "bytes of the w"),
    ("empty graph", "plain", lambda f: _shorten(f / "onnx/model.onnx", 0), NotAModel, "is empty"),
    ("short graph", "plain", lambda f: _shorten(f / "onnx/model.onnx", 5000), TruncatedModel, "ends before"),
    ("other kind", "plain", lambda f: (f / "onnx/model.onnx").write_bytes(b"GGUF" * 9), NotAModel, "not an ONNX"),
    ("a web page", "plain", lambda f: (f / "onnx/model.onnx").write_bytes(b"<!DOCTYPE html>"), NotAModel, "not an"),
    (
        "a pointer",
        "plain",
        lambda f: (f / "onnx/model.onnx").write_bytes(b"version https://git-lfs.github.com/spec"),
        NotAModel,
        "git lfs pull",
    ),
    ("no tokenizer", "plain", lambda f: (f / "tokenizer.json").unlink(), ModelNotFound, "tokenizer.json"),
    ("no tokens", "plain", lambda f: (f / "tokenizer.json").write_text('{"model": 3}'), NotAModel, "no tokens"),
    ("list", "plain", lambda f: (f / "tokenizer.json").write_text("[1]"), NotAModel, "not a JSON object"),
    ("no JSON", "plain", lambda f: (f / "config.json").write_text("{"), NotAModel, "config.json is not readable JSON"),
    ("deep", "plain", lambda f: (f / "config.json").write_text("[" * 99999), NotAModel, "config.json"),
    ("no such graph", "genai", lambda f: (f / "model.onnx").unlink(), ModelNotFound, "genai_config.json names"),
    (
        "outside",
        "genai",
        lambda f: edit(f / "genai_config.json", model={"decoder": {"filename": "../model.onnx"}}),
        ModelNotFound,
        "genai_config.json names",
    ),
    (
        "other names",
        "genai",
        lambda f: edit(
            f / "genai_config.json",
            model={"decoder": {"filename": "model.onnx", "inputs": {"past_key_names": "past.%d.k"}}},
        ),
        UnsupportedModel,
        "past_key_values.0.key|past.0.k",
    ),
]


@pytest.mark.parametrize(("style", "spoil", "error", "says"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_folder_is_one_clear_sentence(
    copied: Callable[[str], Path], style: str, spoil: Break, error: type[EdgeSpecError], says: str
) -> None:
    folder = copied(style)
    spoil(folder)
    with pytest.raises(error, match=says) as raised:
        inspect(folder)
    assert "\n" not in str(raised.value)
    assert raised.value.hint


def test_graphs_of_another_kind_are_refused_by_what_does_not_fit(weights_of_draft: Weights, tmp_path: Path) -> None:
    import onnx

    path = publish(tmp_path, weights_of_draft, "plain", extra_input="pixel_values")
    with pytest.raises(UnsupportedModel, match="needs the input 'pixel_values'"):
        inspect(path)

    def rewritten(change: Callable[[Any], object]) -> Path:
        model = onnx.load(path, load_external_data=False)
        del model.graph.input[3]
        change(model.graph)
        onnx.save(model, path.with_name("other.onnx"))
        return path.with_name("other.onnx")

    def rename(ports: Any, old: str, new: str) -> None:
        for port in ports:
            port.name = port.name.replace(old, new)

    for change, says in (
        (lambda graph: rename(graph.input, "input_ids", "image"), "takes 'image'.* and no input_ids"),
        (lambda graph: rename(graph.input, "past_key_values", "state"), "no keys and values of earlier tokens"),
        (lambda graph: rename(graph.output, "logits", "hidden"), "has no output logits"),
        (lambda graph: rename(graph.output, "present.0", "gone.0"), "has no present.0.key"),
        (lambda graph: setattr(graph.input[-1].type.tensor_type, "elem_type", 16), "as bfloat16 and float32"),
    ):
        with pytest.raises(UnsupportedModel, match=says):
            inspect(rewritten(change))
    assert inspect(rewritten(lambda graph: None)).n_layers == weights_of_draft.n_layers


def test_weights_outside_the_folder_are_refused(weights_of_draft: Weights, tmp_path: Path) -> None:
    import onnx

    path = publish(tmp_path, weights_of_draft, "plain")
    for location in ("../model.onnx_data", "/etc/passwd", "C:\\model.onnx_data", "a\\..\\..\\b", ""):
        model = onnx.load(path, load_external_data=False)
        for constant in model.graph.initializer:
            for entry in constant.external_data:
                if entry.key == "location":
                    entry.value = location
        onnx.save(model, path.with_name("other.onnx"))
        with pytest.raises(UnsupportedModel, match="outside its folder"):
            inspect(path.with_name("other.onnx"))


def test_a_damaged_graph_never_gets_past_an_error_of_ours(copied: Callable[[str], Path]) -> None:
    path = copied("genai") / "model.onnx"
    whole = path.read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 8, 200))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        if rng.random() < 0.3:
            del raw[rng.randrange(len(raw)) :]
        path.write_bytes(raw)
        try:
            inspect(path)
        except EdgeSpecError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 20


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "model.onnx", tmp_path / "a\0.onnx"):
        with pytest.raises(ModelNotFound):
            inspect(path)
        with pytest.raises(ModelNotFound):
            resolve(path)
    with pytest.raises(ModelNotFound, match=r"\.onnx"):
        resolve(tmp_path)


# --- tokenizers

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


def _byte_fallback(folder: Path, decoder: list[dict[str, Any]]) -> JsonTokenizer:
    """A tokenizer as those that come from SentencePiece."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdehlorwt,.", "▁a", "▁b", "he"]
    tokens = {text: token for token, text in enumerate(texts)}
    content = {
        "version": "1.0",
        "truncation": {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
        "padding": None,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoder},
        "added_tokens": [
            {
                "id": token,
                "content": texts[token],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in range(3)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": tokens,
            "merges": ["▁ a", "▁ b", "h e"],
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), "utf-8")
    return JsonTokenizer(path, bos=1, eos=2, ends=frozenset({2}))


SENTENCE_PIECE: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


def test_a_grammar_allows_the_tokens_that_it_allows_of_the_gguf(made: dict[str, Path]) -> None:
    theirs, ours = LlamaWeights(DRAFT, vocab_only=True), ExternalVocabulary(open_tokenizer(made["plain"]))
    everything = range(theirs.n_vocab)
    grammar = 'root ::= ("yes" | "no, " [a-zäß ]+ "\\n")? [^x]{2}'
    states = [LlamaGrammar(vocabulary, grammar).start() for vocabulary in (theirs, ours)]
    seen = 0
    for token in theirs.tokenize("no, straße und\nok", add_special=False):
        expected, found = (np.array(state.allowed(everything)) for state in states)
        # Of two tokens with one text the last one counts.
        alone = np.array([theirs.token_bytes(token) == ours.token_bytes(token) for token in everything])
        assert alone.mean() > 0.99
        assert np.array_equal(expected[alone], found[alone])
        assert not found[~alone].any()
        seen += expected.sum()
        if not expected[token]:
            continue
        states = [state.after(token) for state in states]
        assert all(state is not None for state in states)
    assert seen > 10
    for vocabulary in (theirs, ours):
        vocabulary.close()


HELD = """
import gc, random
from edge_spec.engines.llama.external_vocabulary import ExternalVocabulary
from edge_spec.engines.llama.library import library
from edge_spec.engines.tokenizers import external_vocabulary_bytes
from edge_spec.memory import usage

rng = random.Random(1)
pieces = [b"", *(bytes([n]) for n in range(256)), *(rng.randbytes(rng.randint(3, 9)) for _ in range(31_743))]

class Speller:
    eos, n_vocab = 0, 32_000
    token_bytes = pieces.__getitem__
    def tokenize(self, text, *, add_special): return []
    def ends(self, token): return token == 0

library()
gc.collect()
before = usage().resident_bytes
made = ExternalVocabulary(Speller())
made.speaking, made.single_bytes, made.first_bytes
print(usage().resident_bytes - before, external_vocabulary_bytes(32_000))
"""


TOKENIZER_HELD = """
import gc, json, re, sys
from pathlib import Path
from edge_spec.models.json_tokenizer import JsonTokenizer, loading_peak_bytes, tokenizer_bytes
from edge_spec.memory import usage
from edge_spec.models.onnx.tokens import TokenizerSize

folder, tiny = Path(sys.argv[1]), Path(sys.argv[2])
none = {"bos": -1, "eos": -1, "ends": frozenset()}
size = TokenizerSize(**json.loads(sys.stdin.readline()))
JsonTokenizer(tiny, **none)
gc.collect()
before = usage().resident_bytes
made = JsonTokenizer(folder / "tokenizer.json", **none)
peak = (int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10) - before
made.tokenize("".join(map(chr, range(32, 2000))) * 4, add_special=False)
held = usage().resident_bytes - before
print(held, tokenizer_bytes(size), peak, loading_peak_bytes(size))
"""


def _generated_tokenizer(folder: Path, kind: str, n_tokens: int) -> None:
    """Words of random letters for bytes, each joined of two that came before."""
    rng = random.Random(n_tokens)
    words = [chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    known, merges = set(words), []
    while len(words) < n_tokens:
        pair = [words[rng.randrange(len(words))], words[rng.randrange(min(len(words), 2000))]]
        word = "".join(pair)
        if word not in known and len(word) <= 16:
            known.add(word)
            words.append(word)
            merges.append(pair)
    model: dict[str, Any] = {"type": "BPE", "vocab": {word: n for n, word in enumerate(words)}}
    model["merges"] = merges if kind == "pairs" else list(map(" ".join, merges))
    if kind == "unigram":
        model = {"type": "Unigram", "unk_id": 0, "vocab": [[word, -n / 1000] for n, word in enumerate(words)]}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    splitter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": splitter, "decoder": decoder, "model": model}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="only here the system tells the peak")
@pytest.mark.parametrize(
    ("kind", "n_tokens"), [("pairs", 24_000), ("pairs", 100_000), ("texts", 60_000), ("unigram", 12_000)]
)
def test_a_tokenizer_takes_what_is_planned_while_it_is_loaded_and_after(
    tmp_path: Path, kind: str, n_tokens: int
) -> None:
    _generated_tokenizer(tmp_path / kind, kind, n_tokens)
    _generated_tokenizer(tmp_path / "tiny", "texts", 300)
    tokens, model = read_tokens(tmp_path / kind)
    size = size_of_tokenizer(tmp_path / kind, tokens, model)
    assert size.n_tokens == n_tokens
    done = subprocess.run(
        [sys.executable, "-c", TOKENIZER_HELD, tmp_path / kind, tmp_path / "tiny" / "tokenizer.json"],
        input=json.dumps(vars(size)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    held, planned, peak, planned_peak = map(int, done.stdout.split())
    for measured, expected in ((held, planned), (peak, planned_peak)):
        assert abs(measured - expected) < max(0.2 * expected, 4 << 20), done.stdout


def test_a_tokenizer_is_planned_by_its_own_formula_and_loaded_before_the_weights(made: dict[str, Path]) -> None:
    file = inspect(made["genai"])
    assert file.graph is not None and file.graph.tokenizer is not None
    size = file.graph.tokenizer
    assert size.n_merges == file.n_merges > 0
    with engine("onnx").estimator() as estimates:
        found = estimates.footprint(file, settings_of(128, {}), tokenizer=True)
    assert found.vocabulary_bytes == tokenizer_bytes(size)
    assert found.loading_peak_bytes >= loading_peak_bytes(size) >= tokenizer_bytes(size)


def test_a_vocabulary_for_grammars_takes_what_is_planned_and_no_more() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=120, check=True)
    held, planned = map(int, done.stdout.split())
    assert planned / 3 < held <= planned


def test_a_tokenizer_with_bytes_to_fall_back_on_streams_every_text(tmp_path: Path) -> None:
    import tokenizers

    ours = _byte_fallback(tmp_path, SENTENCE_PIECE)
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
        _byte_fallback(tmp_path, [{"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": True}])
    pattern = {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}
    with pytest.raises(UnsupportedModel, match="not understood"):
        _byte_fallback(tmp_path, [pattern])
    for content in ("{}", "nothing", '{"model": {"type": "Unheard"}}', "\ud800"):
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be used"):
            JsonTokenizer(path, bos=-1, eos=-1, ends=frozenset())


def test_a_text_that_is_no_unicode_is_refused(made: dict[str, Path]) -> None:
    with pytest.raises(EdgeSpecError, match="not Unicode at character 1"):
        open_tokenizer(made["plain"]).tokenize("a\ud800", add_special=True)


def test_a_gguf_of_other_tokens_does_not_fit(made: dict[str, Path], tmp_path: Path) -> None:
    other = inspect(write_gguf(tmp_path / "other.gguf"))
    with pytest.raises(VocabularyMismatch):
        check_pair(inspect(made["plain"]), other)
