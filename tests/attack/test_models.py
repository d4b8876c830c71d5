"""Laws of model files by strangers: one that contradicts itself is refused in a line, and never ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged_families import GEMMA4, HYBRIDS, model_of
from families import EXPERT_FAMILIES, FAMILIES
from forked import forked
from gemma4_shapes import SHAPES, write_gemma4
from gguf_files import write_gguf
from hostile_gguf import HostileGGUF, read_gguf
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid

import edge_spec
from edge_spec.cli import main
from edge_spec.engines import trial
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.registry import able
from edge_spec.engines.trial import require_sound
from edge_spec.errors import EdgeSpecError, UnsupportedModel
from edge_spec.models import ModelFile, inspect, resolve_family
from edge_spec.models.gguf.types import TYPES

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")]

_BUSY_S = 600
"""Calibrating takes seconds, and minutes beside other programs, whose threads llama.cpp's wait for."""


@pytest.fixture
def sound(tmp_path: Path) -> Callable[[], HostileGGUF]:
    path = write_gguf(tmp_path / "sound.gguf")
    return lambda: read_gguf(path)


def run(path: Path, *options: str) -> Callable[[], object]:
    given = ("-p", "Hello there", "--max-tokens", "3", "--seed", "1", "--memory", "4GiB")
    return lambda: main(["run", str(path), *given, *options])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def test_what_is_copied_unchanged_runs(sound: Callable[[], HostileGGUF], home: Path) -> None:
    for engine in ("llama", "onnx"):
        outcome = forked(run(sound().write(home / "copy.gguf"), "--raw", "--engine", engine), seconds=_BUSY_S)
        assert (outcome.code, outcome.fault(most_bytes=2 << 30)) == (0, ""), outcome.err


@pytest.mark.parametrize("kind", ["I8", "I32", "I64", "F64", "Q8_1", "Q8_K"])
def test_matrices_have_types_that_can_be_multiplied(
    kind: str, sound: Callable[[], HostileGGUF], tmp_path: Path
) -> None:
    model = sound()
    name = "blk.0.ffn_up.weight"
    shape, _, _ = model.tensors[name]
    made = TYPES[kind]
    model.tensors[name] = (shape, made.number, bytes(made.row_bytes(shape[0]) * shape[1]))
    with pytest.raises(UnsupportedModel, match=f"{name}.*{kind}"):
        inspect(model.write(tmp_path / "typed.gguf"))


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight"])
def test_norms_are_exact(name: str, sound: Callable[[], HostileGGUF], tmp_path: Path) -> None:
    model = sound()
    shape, _, _ = model.tensors[name]
    model.tensors[name] = (shape, TYPES["F16"].number, bytes(2 * shape[0]))
    with pytest.raises(UnsupportedModel, match=f"{name}.*F16, not F32"):
        inspect(model.write(tmp_path / "norm.gguf"))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
@pytest.mark.parametrize(("family", "name"), [("lfm2", "shortconv.conv"), ("qwen35", "ssm_conv1d")])
def test_convolutions_are_exact(family: str, name: str, kind: str, tmp_path: Path) -> None:
    """llama.cpp's operator reads them as F32 and ends the process otherwise."""
    model = read_gguf(write_hybrid(tmp_path / "sound.gguf", SMALL_HYBRIDS[family], "F32", seed=1))
    inspect(model.write(tmp_path / "copy.gguf"))
    name = next(each for each in model.tensors if each.endswith(f"{name}.weight"))
    shape, _, _ = model.tensors[name]
    made = TYPES[kind]
    model.tensors[name] = (shape, made.number, bytes(made.row_bytes(shape[0]) * shape[1]))
    with pytest.raises(UnsupportedModel, match=f"{name}.*{kind}, not F32"):
        inspect(model.write(tmp_path / "typed.gguf"))


@pytest.mark.parametrize("name", ["dimension_count", "dimension_count_swa"])
def test_rotary_embeddings_turn_some_numbers(name: str, sound: Callable[[], HostileGGUF], tmp_path: Path) -> None:
    """With none of a model that has them, decodes of llama.cpp may never end."""
    model = sound()
    model.values["llama.rope.freq_base"] = (6, 10000.0)
    model.values[f"llama.rope.{name}"] = (4, 0)
    with pytest.raises(UnsupportedModel, match=f"llama.rope.{name} = 0"):
        inspect(model.write(tmp_path / "rotary.gguf"))


@pytest.mark.parametrize(("kind", "n"), [("", 65), ("_swa", 33), ("_swa", 2**31 - 1), ("_swa", None)])
def test_no_more_numbers_of_a_head_are_turned_than_it_has(kind: str, n: int | None, tmp_path: Path) -> None:
    """With a window as many as without, if nothing is said of them. Decodes of llama.cpp would end the process."""
    base = write_gemma4(tmp_path / "sound.gguf", SHAPES["as E2B: shared layers, a table"], "Q4_0")
    model = read_gguf(base)
    key = f"gemma4.rope.dimension_count{kind}"
    if n is None:
        del model.values[key]
    else:
        model.values[key] = (4, n)
    with pytest.raises(UnsupportedModel, match="numbers of a head"):
        edge_spec.load(model.write(tmp_path / "turned.gguf"), engine="llama", n_ctx=64, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen3moe, 2 of 8", "rope.dimension_count", 2**24),
        ("granitemoe, 2 of 8", "rope.dimension_count", 1),
        ("olmo2", "attention.key_length", 2),
    ],
)
def test_what_a_head_turns_is_refused_before_a_plan_is_made(
    family: str, key: str, value: int, tmp_path: Path, home: Path
) -> None:
    """llama.cpp, which is asked for plans, would end the process."""
    model = model_of(family, tmp_path / "sound.gguf")
    architecture = model.values["general.architecture"][1]
    model.values[f"{architecture}.{key}"] = (4, value)
    outcome = forked(run(model.write(home / "turned.gguf"), "--raw", "--engine", "llama"), seconds=_BUSY_S)
    assert (outcome.code, outcome.fault(most_bytes=2 << 30)) == (1, ""), outcome.err
    assert "numbers of a head" in outcome.err


def test_experts_of_layers_that_there_are_not_are_refused_in_a_line(tmp_path: Path) -> None:
    """Where a plan asks how many fit the memory."""
    sound = model_of("gpt-oss, 4 of 32", tmp_path / "sound.gguf")
    fewer = HostileGGUF(sound.values | {"gpt-oss.block_count": (4, 1)}, sound.tensors)
    shape, kind, raw = sound.tensors["output.weight"]
    deeper = HostileGGUF(sound.values, sound.tensors | {"output.weight": ((*shape, 1), kind, raw)})
    for model in (fewer, deeper):
        path = model.write(tmp_path / "changed.gguf")
        with pytest.raises(UnsupportedModel, match=r"no place for|in the shape"):
            edge_spec.load(path, engine="onnx", n_ctx=64, memory=4 << 30, speculation="off", cache_dir=tmp_path)


def test_a_hybrid_is_calibrated_in_a_small_context(tmp_path: Path) -> None:
    """Its state goes back to where a prompt ended, and not to every token."""
    path = write_hybrid(tmp_path / "model.gguf", SMALL_HYBRIDS["qwen35"], "Q4_0", seed=1, noise=0.0)
    given: dict[str, Any] = {"engine": "llama", "n_ctx": 64, "n_threads": 1, "cache_dir": tmp_path}
    with edge_spec.load(path, speculation="off", **given) as model:
        reply = model.generate("A", max_tokens=4, seed=1, ignore_eos=True, raw=True)
        reply.read()
        assert len(reply.token_ids) == 4


def test_sections_of_rotary_embeddings_are_not_all_empty(sound: Callable[[], HostileGGUF], tmp_path: Path) -> None:
    model = sound()
    model.values["llama.rope.dimension_sections"] = (9, (5, [0, 0, 0, 0]))
    with pytest.raises(UnsupportedModel, match="only zeros as"):
        inspect(model.write(tmp_path / "sections.gguf"))
    model.values["llama.rope.dimension_sections"] = (9, (5, [4, 2, 2, 0]))
    inspect(model.write(tmp_path / "sections.gguf"))


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_an_epsilon_is_a_small_number(epsilon: float, sound: Callable[[], HostileGGUF], tmp_path: Path) -> None:
    model = sound()
    model.values["llama.attention.layer_norm_rms_epsilon"] = (6, epsilon)
    with pytest.raises(UnsupportedModel, match="epsilon = "):
        inspect(model.write(tmp_path / "epsilon.gguf"))


def with_equal_tokens(model: HostileGGUF) -> HostileGGUF:
    tokens = model.values["tokenizer.ggml.tokens"][1][1]
    model.values["tokenizer.ggml.tokens"] = (9, (8, ["x"] * len(tokens)))
    return model


def judged(files: Iterable[ModelFile], cache_dir: Path) -> None:
    with require_sound([(file, able(file)) for file in files], cache_dir=cache_dir):
        pass
    # As another process would find it.
    trial._tried_here.cache_clear()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of files that each child is given."""
    trial._tried_here.cache_clear()
    found: list[int] = []
    begin = trial._begun
    monkeypatch.setattr(trial, "_begun", lambda files: (found.append(len(files)), begin(files))[1])
    return found


def test_what_ends_a_process_ends_a_child_once(
    sound: Callable[[], HostileGGUF], tmp_path: Path, children: list[int]
) -> None:
    file = inspect(with_equal_tokens(sound()).write(tmp_path / "alike.gguf"))
    for _ in range(3):
        with pytest.raises(UnsupportedModel, match=r"alike.gguf ends a process that reads it \(SIGABRT\)"):
            judged([file], tmp_path / "cache")
    assert children == [1]


@pytest.mark.parametrize("place", range(3))
def test_one_child_reads_all_files_and_another_one_those_behind_what_ends_it(
    place: int, sound: Callable[[], HostileGGUF], tmp_path: Path, children: list[int]
) -> None:
    family = resolve_family("demo")
    files = [inspect(family.target), inspect(family.draft)]
    files.insert(place, inspect(with_equal_tokens(sound()).write(tmp_path / "alike.gguf")))
    with pytest.raises(UnsupportedModel, match=r"alike.gguf ends a process"):
        judged(files, tmp_path / "cache")
    assert children == ([3, 2 - place] if place < 2 else [3])
    del files[place]
    judged(files, tmp_path / "cache")
    assert len(children) == (2 if place < 2 else 1)


def test_a_child_that_nobody_waits_for_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = [], trial._begun
    monkeypatch.setattr(trial, "_begun", lambda files: begun.append(begin(files)) or begun[-1])
    trial._tried_here.cache_clear()
    file = inspect(resolve_family("demo").target)
    with pytest.raises(KeyboardInterrupt), require_sound([(file, able(file))], cache_dir=tmp_path):
        raise KeyboardInterrupt
    assert [child.returncode for child in begun] == [-signal.SIGKILL]


@pytest.mark.parametrize("options", [("--engine", "llama"), ("--engine", "onnx"), ("--speculation", "ngram")])
def test_a_vocabulary_is_tried_where_the_weights_are_not_loaded(
    options: tuple[str, ...], sound: Callable[[], HostileGGUF], home: Path
) -> None:
    """The library refuses such a file as a whole, and ends a process that asks it for tokens alone."""
    model = sound()
    model.values["tokenizer.ggml.tokens"] = (9, (8, []))
    outcome = forked(run(model.write(home / "nothing.gguf"), *options), seconds=_BUSY_S)
    assert (outcome.code, outcome.fault(most_bytes=2 << 30)) == (1, ""), outcome.err


def test_a_sound_file_is_tried_once(tmp_path: Path, children: list[int]) -> None:
    file = inspect(resolve_family("demo").target)
    judged([file, file], tmp_path)
    judged([file, file], tmp_path)
    assert children == [1]


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_model_that_computes_no_numbers_says_so(
    engine: str, sound: Callable[[], HostileGGUF], tmp_path: Path, home: Path
) -> None:
    model = sound()
    shape, kind, raw = model.tensors["output_norm.weight"]
    model.tensors["output_norm.weight"] = (shape, kind, b"\0\0\xc0\x7f" * (len(raw) // 4))
    said = "nan.gguf has computed NaN instead of a number: output_norm.weight holds some; its weights are damaged"
    outcome = forked(run(model.write(home / "nan.gguf"), "--raw", "--engine", engine), seconds=_BUSY_S)
    assert outcome.code == 1 and said in outcome.err


def test_a_library_that_aborts_runs_no_debugger() -> None:
    code = "from edge_spec.llama_cpp.library import library; import os; library(); os.system('env')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "GGML_NO_BACKTRACE=1" in done.stdout.splitlines()


def test_reading_with_llama_cpp_imports_its_functions_alone() -> None:
    """A strange file is first read by another process: what that imports is waited for."""
    told = "from edge_spec.llama_cpp.library import library; library(); print(*(n in sys.modules for n in names))"
    whole = "import llama_cpp; print(llama_cpp.llama_cpp is library().c, llama_cpp.Llama.__name__)"
    code = f"import sys; names = 'jinja2', 'email', 'llama_cpp'; {told}; {whole}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False", "True", "Llama"]


# --- every family


CERTAIN = (
    "expert_count",
    "expert_used_count",
    "head_count",
    "head_count_kv",
    "key_length",
    "block_count",
    "embedding_length",
)
"""Numbers without which there is no model."""


def contradictions(sound: HostileGGUF) -> Iterator[tuple[str, HostileGGUF, bool]]:
    """Yield what a model says, changed in one place; whether it is none with that."""
    architecture = str(sound.values["general.architecture"][1])
    for name, (kind, value) in sound.values.items():
        changes: list[Any] = {4: [0, 2**31, 2**32 - 1], 5: [0, -1], 6: [0.0, -1.0, float("nan"), float("inf")]}.get(
            kind, []
        )
        if kind == 9 and name.startswith(architecture):
            changes = [(value[0], []), (value[0], value[1][:-1]), (value[0], [type(each)(0) for each in value[1]])]
        for change in changes if name.startswith(architecture) else ():
            made = HostileGGUF(sound.values | {name: (kind, change)}, sound.tensors)
            yield f"{name} = {change}", made, name.endswith(CERTAIN) and kind != 9 and change != value
        if name.startswith(architecture):
            values = {other: each for other, each in sound.values.items() if other != name}
            yield f"no {name}", HostileGGUF(values, sound.tensors), name.endswith(("block_count", "embedding_length"))
    seen = set()
    for name, (shape, kind, raw) in sound.tensors.items():
        role = "".join(part for part in name.split(".") if not part.isdigit())
        if role not in seen:
            seen.add(role)
            others = {other: each for other, each in sound.tensors.items() if other != name}
            yield f"no {name}", HostileGGUF(sound.values, others), False
            if shape[-1] > 1:
                half = ((*shape[:-1], shape[-1] // 2), kind, raw[: len(raw) // shape[-1] * (shape[-1] // 2)])
                yield f"half of {name}", HostileGGUF(sound.values, sound.tensors | {name: half}), True


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
@pytest.mark.parametrize("family", [*FAMILIES, *EXPERT_FAMILIES, *HYBRIDS, *GEMMA4])
def test_a_model_of_any_family_that_contradicts_itself_is_refused_in_a_line(family: str, tmp_path: Path) -> None:
    sound, path, accepted = model_of(family, tmp_path / "sound.gguf"), tmp_path / "changed.gguf", []
    for number, (what, model, is_none) in enumerate(contradictions(sound)):
        model.write(path)
        try:
            transcribe(inspect(path), tmp_path / str(number))
        except EdgeSpecError as error:
            assert "\n" not in str(error) and error.hint, what
        else:
            accepted += [what] * is_none
    assert accepted == []
