"""Models in several files, as llama-gguf-split writes them."""

from __future__ import annotations

from pathlib import Path

import gguf

__all__ = ["split_gguf"]


def split_gguf(whole: Path, folder: Path, n_parts: int, *, stem: str = "model") -> list[Path]:
    """Write a model again in several files; tensors go to them by turns, so that every part has some of each layer."""
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    paths = [folder / f"{stem}-{number:05}-of-{n_parts:05}.gguf" for number in range(1, n_parts + 1)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, architecture)
        for key, field in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kind = field.types[0]
                sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), kind, sub_type=sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", n_parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::n_parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths
