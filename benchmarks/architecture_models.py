"""Writes a small model of random weights for every architecture that llama.cpp can make one of.

    python benchmarks/architecture_models.py SOURCE FOLDER [--only REGEX]

SOURCE is an unpacked source package of llama-cpp-python (``pip download --no-binary llama-cpp-python --no-deps
llama-cpp-python==VERSION``), or llama.cpp's own tree. Its test ``test-llama-archs`` is built in FOLDER/build, from a
copy whose vocabulary and context are those of the demo family; it knows which hyper-parameters an architecture needs
and writes a model for each. Its made-up tokenizer is then replaced by the demo family's, so that the files chat.

Needs a C++ compiler, CMake and Ninja; the build takes some six minutes of two cores the first time. What is there
already stays.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter, ReaderField

from edge_spec.models import resolve_family

__all__ = ["architecture_models"]

_TARGET = "test-llama-archs"
_TEST = Path("tests") / f"{_TARGET}.cpp"
_CONSTANTS = {
    "const uint32_t n_ctx = 256;": "const uint32_t n_ctx = 1024;",
    "uint32_t n_vocab = 128;": "uint32_t n_vocab = 8192;",
}
"""Of the test's source: sizes that leave no room for a real text, and those of the demo family."""

_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "ON",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
_TOKENS, _TYPES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))


def architecture_models(source: Path, folder: Path, *, only: str = "") -> list[Path]:
    """The models, sorted; made if they are not there."""
    raw = folder / "raw"
    if not any(raw.glob("*.gguf")):
        raw.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(_built(source, folder / "build")), "-o", str(raw)], check=True, stdout=subprocess.DEVNULL)
    demo = GGUFReader(resolve_family(None).target)
    found = [path for path in sorted(raw.glob("*.gguf")) if re.search(only, path.stem)]
    for path in found:
        made = folder / path.name
        if not made.exists():
            part = made.with_suffix(".part")
            _write_with_tokenizer(part, GGUFReader(path), demo)
            part.replace(made)
    return [folder / path.name for path in found]


def _built(source: Path, build: Path) -> Path:
    """The program that writes the models."""
    program = build / "bin" / _TARGET
    if not program.exists():
        tree = source / "vendor" / "llama.cpp" if (source / "vendor").is_dir() else source
        copy = build / "source"
        if not copy.exists():
            shutil.copytree(tree, copy)
        text = (copy / _TEST).read_text("utf-8")
        for was, becomes in _CONSTANTS.items():
            if was not in text and becomes not in text:
                raise SystemExit(f"{_TEST} has no {was!r} any more: this script is for llama-cpp-python 0.3.36")
            text = text.replace(was, becomes)
        (copy / _TEST).write_text(text, "utf-8")
        options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
        subprocess.run(["cmake", "-G", "Ninja", "-S", str(copy), "-B", str(build), *options], check=True)
        subprocess.run(["ninja", "-C", str(build), _TARGET], check=True)
    return program


def _write_with_tokenizer(path: Path, model: GGUFReader, tokenizer: GGUFReader) -> None:
    """Write a model with the tokenizer of another file, of which it has as many tokens as its vocabulary."""
    n_vocab = int(next(each for each in model.tensors if each.name == "token_embd.weight").shape[-1])
    architecture = model.fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    for field in _fields(model):
        if not field.name.startswith("tokenizer.") and field.name not in ("general.architecture", "general.name"):
            _add(writer, field, field.contents())
    # Vocabularies are read in another way where a name holds that of a known model.
    writer.add_name("random weights")
    known = set(tokenizer.fields[_TOKENS].contents()[:n_vocab])
    for field in _fields(tokenizer):
        if field.name.startswith("tokenizer."):
            value = field.contents()
            if field.name in (_TOKENS, _TYPES):
                value = value[:n_vocab]
            elif field.name == _MERGES:
                value = [merge for merge in value if merge.replace(" ", "", 1) in known]
            _add(writer, field, value)
    for tensor in model.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _fields(reader: GGUFReader) -> Iterator[ReaderField]:
    return (field for field in reader.fields.values() if not field.name.startswith("GGUF."))


def _add(writer: GGUFWriter, field: ReaderField, value: object) -> None:
    kind = field.types[0]
    if kind == GGUFValueType.ARRAY and not value:
        return
    writer.add_key_value(field.name, value, kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of files, such as 'qwen|lfm2'")
    asked = parser.parse_args()
    print(*architecture_models(asked.source, asked.folder, only=asked.only), sep="\n")
