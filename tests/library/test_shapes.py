"""Laws of models that are known by their shape alone: what is said of them is what their files would give."""

from __future__ import annotations

import re

import pytest

from edge_spec.errors import ModelNotFound
from edge_spec.library.shapes import file_of, files_of, read_shapes
from edge_spec.library.wanted import Source, read_catalogue
from edge_spec.loading import plan, plan_files
from edge_spec.models import inspect, resolve

HELD = 60 << 20
SMOLLM2 = "bartowski/SmolLM2-135M-Instruct-GGUF"
NOT_PUBLISHED = {"lfm2.5-8b-a1b"}
"""Entries of which nobody here has read how large they are."""


def parameters_in(name: str) -> float:
    """Millions of parameters, as a name says them."""
    number, unit = re.findall(r"(?:^|-)e?(\d+(?:\.\d+)?)([mb])(?:-|$)", name)[0]
    return float(number) * (1000 if unit == "b" else 1)


@pytest.mark.long
def test_a_shape_is_planned_as_its_file_is() -> None:
    try:
        path = resolve("smollm2")
    except ModelNotFound:
        pytest.skip("smollm2 is not installed")
    real = inspect(path)
    known = file_of(read_shapes()[SMOLLM2], Source(repo=SMOLLM2, patterns=(f"*-{real.quantization}.gguf",)))
    assert known is not None
    assert abs(known.weight_bytes - real.weight_bytes) < 0.01 * real.weight_bytes
    assert abs(known.n_params - real.n_params) < 0.001 * real.n_params
    for memory in ("1GiB", "240MiB", "40MiB"):
        asked = {"memory": memory, "held_bytes": HELD}
        first, here, least_bytes = plan_files({"target": known}, **asked)
        wanted = plan(path, speculation="ngram", memory="1GiB", held_bytes=HELD).chosen
        assert abs(first.needed_bytes - wanted.needed_bytes) < 0.02 * wanted.needed_bytes
        assert first.n_ctx == wanted.n_ctx
        if memory == "40MiB":
            least = plan(path, speculation="ngram", memory="1GiB", held_bytes=HELD).least["fits"]
            assert here is None
            assert abs(least_bytes - least.needed_bytes) < 0.03 * least.needed_bytes
        else:
            assert here is not None
            assert here.needed_bytes <= (1 << 30 if memory == "1GiB" else 240 << 20)


def test_a_file_of_one_bit_weights_is_as_large_as_the_published_one() -> None:
    """Bonsai 8B has the shape of Qwen 3 8B, and all of its matrices are Q1_0."""
    source = Source(repo="prism-ml/Bonsai-8B-gguf", patterns=("Bonsai-8B-Q1_0.gguf",))
    file = file_of(read_shapes()["ggml-org/Qwen3-8B-GGUF"], source)
    assert file is not None and file.quantization == "Q1_0"
    assert abs(file.weight_bytes - 1.15e9) < 0.01e9


@pytest.mark.parametrize("name", sorted(read_catalogue()))
def test_every_entry_is_as_large_as_its_name_says(name: str) -> None:
    files = files_of(read_catalogue()[name])
    if name in NOT_PUBLISHED:
        assert files is None
        return
    assert files is not None
    if re.search(r"\d[mb]\b", name) and not re.search("e2b|e4b", name):
        assert 0.85 < files["target"].n_params / 1e6 / parameters_in(name) < 1.25
    for file in files.values():
        # Nothing is left over, and nothing is missing: layers have attention that is neither tiny nor all.
        held = sum(tensor.n_elements for tensor in file.tensors)
        assert abs(held - file.n_params) < 0.002 * file.n_params
        assert all(min(tensor.shape) > 0 for tensor in file.tensors)
        n_bits = 8 * file.weight_bytes / file.n_params
        assert 4.1 < n_bits < 8.6, n_bits


def test_shapes_of_plain_attention_say_their_parameters_themselves() -> None:
    """A slip in one of the numbers would show in what is left for queries, keys and values."""
    plain = {"llama", "qwen2", "qwen3", "gemma3", "mistral3", "smollm3", "granite"}
    for repo, shape in read_shapes().items():
        if shape.architecture not in plain:
            continue
        rest = next(dims[1] for name, dims in shape.matrices() if name == "blk.0.attn_q.weight")
        assert abs(rest / (2 * (shape.heads + shape.kv) * shape.head) - 1) < 0.05, repo


@pytest.mark.long
def test_every_shape_belongs_to_the_catalogue_and_runs_on_an_engine() -> None:
    sources = [source for entry in read_catalogue().values() for source in entry.sources.values()]
    assert set(read_shapes()) <= {source.repo for source in sources}
    for source in sources:
        if source.repo in read_shapes():
            file = file_of(read_shapes()[source.repo], source)
            assert file is not None
            if file.architecture != "granitehybrid":
                assert plan_files({"target": file}, engine="onnx", memory="1000GiB")[1] is not None


def test_a_file_whose_name_tells_no_type_is_not_guessed() -> None:
    shape = read_shapes()[SMOLLM2]
    assert file_of(shape, Source(repo=SMOLLM2, patterns=("*.gguf",))) is None
    assert file_of(shape, Source(repo=SMOLLM2, patterns=("*-IQ2_XXS.gguf",))) is None
