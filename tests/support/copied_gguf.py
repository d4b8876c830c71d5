"""What copies of a GGUF in another vocabulary have in common."""

from __future__ import annotations

from collections.abc import Callable

import gguf


def copy_metadata(
    reader: gguf.GGUFReader,
    writer: gguf.GGUFWriter,
    *,
    leave_out: tuple[str, ...],
    changed: Callable[[str, object], object] = lambda name, value: value,
) -> None:
    """Copy everything that is said of a model, but for its number of tokens, which differs.

    Args:
        leave_out: beginnings of names.
        changed: called with a name and a value, what to write.
    """
    architecture = reader.fields["general.architecture"].contents()
    for field in reader.fields.values():
        known = field.name in ("general.architecture", f"{architecture}.vocab_size")
        if known or field.name.startswith(leave_out):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, changed(field.name, field.contents()), kind, sub_type=sub_type)
