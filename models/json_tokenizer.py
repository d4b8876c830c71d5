"""Convert text to tokens and back by a ``tokenizer.json``, the format of published models."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from edge_spec.errors import BAD_RECORD, Closed, EdgeSpecError, PromptError, UnsupportedModel
from edge_spec.memory.usage import trim_heap
from edge_spec.models.onnx.tokens import TokenizerSize
from edge_spec.models.tokenizer_parts import why_not_bounded
from edge_spec.tokens.byte_letters import BYTE_LETTERS
from edge_spec.tokens.known_tokens import KnownTokens, require_unicode

__all__ = ["JsonTokenizer", "loading_peak_bytes", "tokenizer_bytes"]

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"

_FIRST = "a \U0010fffd"

_MOST_GROWTH = 64
"""The most letters that decoding may make of each letter of a token."""

_LONG_TEXT = 1 << 11
"""Letters from which on a text may take long."""

_MOST_OF_RUNS = 16_384
"""In a row; of shorter runs more in all. A pattern of a published tokenizer then takes four seconds."""

_RUN = re.compile(r"[^\W_]{256,}|\s{256,}")
"""Of letters and digits, or of white space; shorter runs cost nothing beside the rest of a text."""


_OWN_BYTES = 3 << 20
"""Bytes that the library takes for the first text: patterns, and cached words."""


def tokenizer_bytes(size: TokenizerSize) -> int:
    """Return the memory of a loaded tokenizer.

    Two hash tables of tokens and one of merges, and the texts. Fitted to 15 generated BPE files of 8,192 to 256,000
    tokens and 8,000 to 365,000 merges, and 5 unigram files, with tokenizers 0.23 on x86-64: each within 20 % or 4 MiB.
    Where merges are pairs, reading them fragments the heap, the more the longer the texts are.
    """
    if size.n_prefixes:
        return _OWN_BYTES + 20 * size.n_tokens + 362 * size.n_prefixes
    tables = 66 * _n_buckets(size.n_tokens) + 17 * _n_buckets(size.n_merges)
    holes = size.file_bytes if size.in_pairs else 0
    return _OWN_BYTES + 153 * size.n_tokens + tables + holes


def _n_buckets(n: int) -> int:
    """Buckets of a hash table: a power of two, of which at most seven eighths are used."""
    return 1 << (8 * n // 7).bit_length() if n else 0


def loading_peak_bytes(size: TokenizerSize) -> int:
    """Return the most that a tokenizer takes while it is loaded: the library keeps the parsed file until it is built.

    Fitted to the same files: most within 10 %, each within 20 % or 4 MiB.
    """
    if size.n_prefixes:
        peak = 80 * size.n_tokens + 362 * size.n_prefixes + 2 * size.file_bytes
    elif size.in_pairs:
        peak = 208 * size.n_tokens + 472 * size.n_merges + 5 * size.file_bytes
    else:
        peak = 249 * size.n_tokens + 115 * size.n_merges + 4 * size.file_bytes
    return max(peak, tokenizer_bytes(size))


class JsonTokenizer(KnownTokens):
    """A tokenizer of the ``tokenizers`` library.

    A token's bytes are what its decoder makes of it in the middle of a text: some decoders drop a space at the very
    beginning, which belongs to the prompt and not to a reply.

    Args:
        path: of ``tokenizer.json``.
        bos, eos: the tokens that begin and end a text; -1 for none.
        ends: the tokens that end a reply.

    Raises:
        UnsupportedModel: the library cannot read the file, or the file's decoder is not one of those known here.
    """

    def __init__(self, path: Path, *, bos: int, eos: int, ends: frozenset[int]) -> None:
        from tokenizers import Tokenizer

        super().__init__()
        try:
            # Text, not a path: the file may have any name, and bad UTF-8 can be told from a bad tokenizer.
            settings = path.read_text("utf-8")
            self._library: Any = Tokenizer.from_str(settings)
            # Only the decoder: the whole file, parsed in Python, would take as much memory again.
            decoder = json.loads(state()) if (state := getattr(self._tokenizer.decoder, "__getstate__", None)) else None
            unbounded = why_not_bounded(self._tokenizer)
            self._has_patterns = '"Regex"' in settings
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            # A text that no vocabulary has finds tokenizers whose unknown token does not exist.
            first = [] if unbounded else self._tokenizer.encode(_FIRST).ids[:1]
        except BaseException as error:
            # The library's own panics are not derived from Exception.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise _unusable(path, str(error)) from None
        if unbounded:
            raise _unusable(path, unbounded)
        del settings
        # The parsed file is as large as the tokenizer itself.
        trim_heap()
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._to_bytes = _decoder(path, decoder)
        self._name = path.name
        # The library's object holds a flag for reading special tokens.
        self._encoding = threading.Lock()
        self._ends = ends
        self.bos = bos
        self.eos = eos
        self.adds_bos = bos >= 0 and first == [bos]

    @property
    def _tokenizer(self) -> Any:
        if self._library is None:
            raise Closed(f"the tokenizer {self._name}")
        return self._library

    def close(self) -> None:
        """Free its tables. Safe to call twice."""
        self._library = None

    @cached_property
    def n_vocab(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def control_names(self) -> list[str]:
        """Names of the special tokens."""
        return [str(added.content) for added in self._added.values() if added.special]

    def tokenize(self, text: str, *, add_special: bool, controls: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: add the tokens that the model expects around every text.
            controls: names of special tokens in it become these tokens; else they are text.

        Raises:
            PromptError: the text contains lone surrogates, or the library cannot read it.
        """
        require_unicode(text)
        if len(text) >= _LONG_TEXT and self._has_patterns:
            self._require_short_runs(text)
        with self._encoding:
            self._tokenizer.encode_special_tokens = not controls
            try:
                if len(text) < _LONG_TEXT:
                    return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)
                # Only for several texts does the library let other threads go on meanwhile.
                (found,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special)
                return list(found.ids)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                said = (str(error).splitlines() or ["it gives no reason"])[0][:200]
                raise PromptError(f"{self._name} cannot turn this text into tokens: {said}") from None

    def _require_short_runs(self, text: str) -> None:
        """Raise if a text has long runs of what patterns of published tokenizers take the square of: they look from
        each digit or space to the end of the run."""
        squares = 0
        for found in _RUN.finditer(text):
            alike = groupby(found[0], lambda letter: letter.isnumeric() or letter.isspace())
            squares += sum(sum(1 for _ in run) ** 2 for is_counted, run in alike if is_counted)
        if squares > _MOST_OF_RUNS**2:
            n = math.isqrt(squares)
            said = f"it has digits or spaces in a row, like {n:,} at once, and {_MOST_OF_RUNS:,} are read"
            raise PromptError(f"{self._name} cannot turn this text into tokens: {said}", hint="put other text between")

    def _read_bytes(self, token: int, *, special: bool = False) -> bytes:
        added = self._added.get(token)
        return b"" if added is not None and added.special and not special else self._bytes(token)

    def _bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return str(added.content).encode()
        text = self._tokenizer.id_to_token(token)
        return self._to_bytes(text) if text is not None else b""

    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""
        return token in self._ends


def _decoder(path: Path, decoder: Any) -> Callable[[str], bytes]:
    """Return a function that turns a token's text into bytes, as ``decoder`` does."""
    try:
        parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = [part["type"] for part in parts]
        if kinds == ["ByteLevel"]:
            return _by_letters()
        replaced: list[tuple[str, str]] = []
        for part in parts:
            if part["type"] == "Replace":
                replaced.append((part["pattern"]["String"], part["content"]))
            elif part["type"] == "Metaspace":
                replaced.append((part.get("replacement", _SPACE), " "))
            elif part["type"] not in ("ByteFallback", "Fuse", "Strip"):
                raise _unusable(path, f"its decoder is {part['type']!r}")
    except EdgeSpecError:
        raise
    except BAD_RECORD:
        raise _unusable(path, "its decoder is not understood") from None
    fallback = "ByteFallback" in kinds
    growth = math.prod(max(1, math.ceil(len(new) / len(old)) if old else 1 + len(new)) for old, new in replaced)
    if growth > _MOST_GROWTH:
        raise _unusable(path, f"its decoder can make a token {growth} times as long")

    def to_bytes(text: str) -> bytes:
        byte = _BYTE.fullmatch(text) if fallback else None
        if byte:
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            text = text.replace(old, new)
        return text.encode()

    return to_bytes


def _by_letters() -> Callable[[str], bytes]:
    """Return the decoder of byte-level vocabularies."""
    letters = {letter: byte for byte, letter in BYTE_LETTERS.items()}

    def to_bytes(text: str) -> bytes:
        try:
            return bytes(letters[letter] for letter in text)
        except KeyError:
            return text.encode()

    return to_bytes


def _unusable(path: Path, why: str) -> UnsupportedModel:
    first_line = (why.splitlines() or ["for no stated reason"])[0][:200]
    return UnsupportedModel(f"{path} cannot be used: {first_line}", hint="get the model with a current tokenizer.json")
