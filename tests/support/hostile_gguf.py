"""GGUFs that are wrong on purpose: one that runs, with some of what it says changed. The same for the same number."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from edge_spec.models.gguf.types import TYPES, TYPES_BY_NUMBER

__all__ = ["HostileGGUF", "read_gguf"]

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_NUMBERS = (0, 1, 2, 3, 7, 31, 64, 255, 257, 1024, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"), 0.5, -1e-6)
_TOKENIZERS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "gemma4", "\x1b]0;x\x07", "")
_PRES = ("default", "llama-bpe", "qwen2", "deepseek-llm", "gpt-4o", "tekken", "smollm", "\x1b[2J", "x" * 300)
_ARCHITECTURES = ("qwen2", "gemma3", "phi3", "mamba", "bert", "t5", "gptneox", "falcon", "rwkv7", "clip")
_ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
_TEMPLATES = (
    "{{ 9**(9**9) }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "{{",
    "",
)


@dataclass
class HostileGGUF:
    """What a GGUF says, to be changed and written: values as ``(type, value)``, tensors as ``(shape, type, data)``."""

    values: dict[str, tuple[int, Any]]
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
    said: list[str] = field(default_factory=list)

    def change(self, seed: int) -> HostileGGUF:
        """Change one to three things."""
        chance = random.Random(seed)
        for _ in range(chance.choice((1, 1, 2, 3))):
            chance.choices((self._number, self._tensor, self._tokenizer, self._value, self._data), (5, 5, 4, 2, 2))[0](
                chance
            )
        return self

    def write(self, path: Path) -> Path:
        """Write it, with offsets that fit."""
        head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values)))
        for name, (kind, value) in self.values.items():
            head += _text(name) + struct.pack("<I", kind) + _packed(kind, value)
        data = bytearray()
        for name, (shape, number, content) in self.tensors.items():
            head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
            head += struct.pack("<IQ", number, len(data))
            data += content + bytes(-len(content) % 32)
        path.write_bytes(bytes(head) + bytes(-len(head) % 32) + bytes(data))
        return path

    def _number(self, chance: random.Random) -> None:
        name = chance.choice([name for name, (kind, _) in self.values.items() if kind in _CODES])
        kind, _ = self.values[name]
        value: Any = chance.choice(_FLOATS) if kind in (_FLOAT, 12) else chance.choice(_NUMBERS)
        if kind not in (_FLOAT, 12):
            value &= (1 << (8 * struct.calcsize(_CODES[kind]) - 1)) - 1 if kind in (1, 3, 5, 11) else -1 % (1 << 32)
        self.values[name] = (kind, value if kind != _BOOL else bool(value % 2))
        self.said.append(f"{name} = {value}")

    def _value(self, chance: random.Random) -> None:
        name = chance.choice(list(self.values))
        kind = chance.randrange(4)
        if kind == 0:
            del self.values[name]
        elif kind == 1:
            self.values[name] = (_STRING, chance.choice(("", "x", "\x1b[2J", "9" * 400)))
        elif kind == 2:
            self.values[name] = (_ARRAY, (_U32, [chance.choice(_NUMBERS) for _ in range(chance.choice((0, 1, 2, 5)))]))
        else:
            self.values["general.architecture"] = (_STRING, chance.choice(_ARCHITECTURES))
            before, name = self.values, "general.architecture"
            self.values = {self._renamed(key): value for key, value in before.items()}
        self.said.append(f"{name} of another kind")

    def _renamed(self, key: str) -> str:
        architecture = self.values["general.architecture"][1]
        return f"{architecture}.{key.partition('.')[2]}" if key.partition(".")[0] == "llama" else key

    def _tokenizer(self, chance: random.Random) -> None:
        tokens = "tokenizer.ggml.tokens"
        n = len(self.values[tokens][1][1]) if tokens in self.values else 1
        odd = chance.choice(("", "a", "▁", "\n", "<|im_end|>", "í³¿"))
        merges = chance.choice((["a b"] * 9, ["", " ", "x"], ["abc"], []))
        special = f"tokenizer.ggml.{chance.choice(('bos', 'eos', 'eot', 'padding'))}_token_id"
        made: dict[str, tuple[int, Any]] = chance.choice(
            (
                {"tokenizer.ggml.model": (_STRING, chance.choice(_TOKENIZERS))},
                {"tokenizer.ggml.pre": (_STRING, chance.choice(_PRES))},
                {tokens: (_ARRAY, (_STRING, [odd] * n))},
                {tokens: (_ARRAY, (_STRING, [f"{odd}{i % 7}" for i in range(n)]))},
                {tokens: (_ARRAY, (_STRING, []))},
                {"tokenizer.ggml.token_type": (_ARRAY, (5, [chance.choice((0, 1, 2, 3, 6, 99, -1))] * n))},
                {"tokenizer.ggml.token_type": (_ARRAY, (5, [1]))},
                {"tokenizer.ggml.scores": (_ARRAY, (_FLOAT, [chance.choice(_FLOATS)] * chance.choice((n, 1, 0))))},
                {"tokenizer.ggml.merges": (_ARRAY, (_STRING, merges))},
                {special: (_U32, chance.choice(_NUMBERS))},
                {"tokenizer.ggml.add_bos_token": (_BOOL, True)},
                {
                    "tokenizer.ggml.model": (_STRING, chance.choice(("llama", "t5"))),
                    "tokenizer.ggml.precompiled_charsmap": (_ARRAY, (0, [chance.randrange(256) for _ in range(60)])),
                },
                {"tokenizer.chat_template": (_STRING, chance.choice(_TEMPLATES))},
            )
        )
        self.values |= made
        self.said.append(f"{next(iter(made))} = {str(next(iter(made.values()))[1])[:60]}")

    def _tensor(self, chance: random.Random) -> None:
        name = chance.choice(list(self.tensors))
        shape, number, data = self.tensors[name]
        kind = chance.random()
        if kind < 0.55:
            number = chance.choice(list(TYPES_BY_NUMBER))
        elif kind < 0.85:
            shape = chance.choice((shape[::-1], (*shape, 1), (*shape, 2), (shape[0] * 2, *shape[1:]), (32,), (256, 1)))
        elif kind < 0.95:
            del self.tensors[name]
            self.said.append(f"no {name}")
            return
        else:
            self.tensors[name.replace("weight", "bias")] = (shape[:1], TYPES["F32"].number, bytes(4 * shape[0]))
            self.said.append(f"a bias beside {name}")
            return
        made = TYPES_BY_NUMBER[number]
        if shape[0] % made.block:
            shape = (shape[0] + -shape[0] % made.block, *shape[1:])
        n_bytes = made.row_bytes(prod(shape))
        self.tensors[name] = (shape, number, (data * (n_bytes // max(1, len(data)) + 1))[:n_bytes])
        self.said.append(f"{name} is {made.name} {shape}")

    def _data(self, chance: random.Random) -> None:
        name = chance.choice(list(self.tensors))
        shape, number, data = self.tensors[name]
        pattern = chance.choice((b"\xff\xff\xff\x7f", b"\0\0\x80\x7f", b"\xff", b"\0", b"\0\0\xc0\x7f", b"\1\2\3"))
        self.tensors[name] = (shape, number, (pattern * (len(data) // len(pattern) + 1))[: len(data)])
        self.said.append(f"{name} holds {pattern!r}")


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _packed(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_packed(inner, item) for item in items)
    return struct.pack(f"<{_CODES[kind]}", value)


def read_gguf(path: Path) -> HostileGGUF:
    """Read a GGUF that is right."""
    raw = path.read_bytes()
    n_tensors, n_values = struct.unpack_from("<QQ", raw, 8)
    at = 24

    def number(code: str) -> Any:
        nonlocal at
        at += struct.calcsize(f"<{code}")
        return struct.unpack_from(f"<{code}", raw, at - struct.calcsize(f"<{code}"))[0]

    def text() -> str:
        nonlocal at
        n = number("Q")
        at += n
        return raw[at - n : at].decode("utf-8", "surrogateescape")

    def value(kind: int) -> Any:
        if kind == _STRING:
            return text()
        if kind == _ARRAY:
            inner, n = number("I"), number("Q")
            return (inner, [value(inner) for _ in range(n)])
        return number(_CODES[kind])

    values = {}
    for _ in range(n_values):
        name, kind = text(), number("I")
        values[name] = (kind, value(kind))
    listed = []
    for _ in range(n_tensors):
        name = text()
        shape = tuple(number("Q") for _ in range(number("I")))
        listed.append((name, shape, number("I"), number("Q")))
    start = at + -at % 32
    tensors = {}
    for name, shape, kind, offset in listed:
        n_bytes = TYPES_BY_NUMBER[kind].row_bytes(prod(shape))
        tensors[name] = (shape, kind, raw[start + offset : start + offset + n_bytes])
    return HostileGGUF(values, tensors)
