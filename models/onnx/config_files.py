"""The configuration files of a published graph: settings, ids of special tokens, and the chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edge_spec.errors import NotAModel
from edge_spec.foreign import parse_json
from edge_spec.models.onnx.tensors import open_regular

__all__ = ["GENAI", "TOKENIZER", "ConfigFiles", "read_json"]

GENAI = "genai_config.json"
TOKENIZER = "tokenizer.json"

_MAX_JSON_BYTES = 256 << 20
"""More than any tokenizer needs; 33 MB for 262k tokens."""

_MAX_TEMPLATE_BYTES = 1 << 20

Settings = Mapping[str, Any]


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if there is no such file.

    Raises:
        NotAModel: it is not a JSON object, or too large. ModelNotFound: it cannot be read.
    """
    if not path.exists():
        return {}
    raw = _read(path, _MAX_JSON_BYTES)
    if raw.startswith(b"version https://git-lfs"):
        raise NotAModel(f"{path} is only a Git LFS pointer", hint="run 'git lfs pull' in its folder")
    try:
        found = parse_json(raw)
    except ValueError as error:
        raise NotAModel(f"{path} is not readable JSON", hint="download it again") from error
    if not isinstance(found, dict):
        raise NotAModel(f"{path} is not a JSON object", hint="download it again")
    return found


def _read(path: Path, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise NotAModel(f"{path} has more than {max_bytes >> 20} MiB", hint="check where it comes from")
    return raw


class ConfigFiles:
    """The settings in the folder of a model; files that are missing count as empty.

    Attributes:
        genai: the model's part of ``genai_config.json``, as ONNX Runtime GenAI reads it.
        config: ``config.json``, of its text part where it has several.
        generation: ``generation_config.json``.
        tokenizer: ``tokenizer_config.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.genai = _part(read_json(folder / GENAI), "model")
        config = read_json(folder / "config.json")
        self.config: Settings = config | _part(config, "text_config")
        self.generation: Settings = read_json(folder / "generation_config.json")
        self.tokenizer: Settings = read_json(folder / "tokenizer_config.json")

    @property
    def decoder(self) -> Settings:
        """The decoder's part of ``genai_config.json``."""
        return _part(self.genai, "decoder")

    def number(self, *names: str) -> int:
        """Return the first number above 0 that one of the settings has under one of these names; 0 if none has."""
        sources: tuple[Settings, ...] = (self.decoder, self.genai, self.config)
        found = (source.get(name) for name in names for source in sources)
        return next((value for value in found if type(value) is int and 0 < value < 1 << 31), 0)

    def text(self, *names: str) -> str:
        """Return the same for a text of printable characters; empty if there is none."""
        found = (source.get(name) for name in names for source in (self.config, self.genai))
        return next((v[:64] for v in found if isinstance(v, str) and v and v[:64].isprintable()), "")

    def ids(self, name: str) -> Iterator[int]:
        """Yield every token id under this name in any of the settings, alone or in a list."""
        for source in (self.generation, self.genai, self.config):
            value = source.get(name)
            for item in value if isinstance(value, list) else [value]:
                if type(item) is int and item >= 0:
                    yield item

    def token(self, name: str) -> str | None:
        """Return the text of a special token in ``tokenizer_config.json``; None if it does not name one."""
        value = self.tokenizer.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def chat_template(self) -> str | None:
        """Return the Jinja template of a conversation.

        A separate file takes precedence over the tokenizer's settings.
        """
        path = self.folder / "chat_template.jinja"
        if path.exists():
            return _read(path, _MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
        for settings in (read_json(self.folder / "chat_template.json"), self.tokenizer):
            found = settings.get("chat_template")
            if isinstance(found, list):
                named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
                found = named.get("default")
            if isinstance(found, str):
                return found
        return None


def _part(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = settings.get(name)
    return part if isinstance(part, dict) else {}
