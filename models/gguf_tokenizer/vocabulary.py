"""The vocabulary of a GGUF: its tokens, their kinds, and which of them begin and end texts.

Files say little of this, and llama.cpp guesses the rest by names. Its guesses are these, since other ids and other
ends of replies would change texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from edge_spec.errors import UnsupportedModel
from edge_spec.models.gguf.cursor import STRING, VALUE_TYPES
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader
from edge_spec.models.gguf_tokenizer.letters import bytes_of_marks
from edge_spec.models.gguf_tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "SPACE",
    "UNKNOWN",
    "USER_DEFINED",
    "GGUFVocabulary",
    "why_unknown",
]

_SCORED, _PAIRED = ("llama",), ("gpt2", "gemma4")
_KINDS = (*_SCORED, *_PAIRED)
"""The kinds of vocabularies that are supported; a ``gpt2`` one may still cut words in an unknown way."""

_SAID = 64
"""The most characters of a file's name to quote."""

UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE = (1 << bit for bit in range(6))
"""Flags of a token; it may have several."""

_BY_TYPE = bytes((0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE))
"""Flags by the type in the file; other types are as 0."""

SPACE = "\u2581".encode()

_ENDS = frozenset(
    name.encode()
    for name in (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
        *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    )
)
"""Tokens that end a reply in every vocabulary, and are always control tokens."""

_FILL_IN = (
    (
        ("fim_pre", "prefix"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
        False,
    ),
    (
        ("fim_suf", "suffix"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
        False,
    ),
    (
        ("fim_mid", "middle"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
        False,
    ),
    (("fim_pad",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"), True),
    (("fim_rep",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), True),
    (("fim_sep",), ("<|file_sep|>",), True),
)
"""Tokens for code that is filled in: the keys that may name one, the names of which the first found is a control
token where no key does, and whether it ends a reply."""

_PARTS_OF_MESSAGES = (b"<|channel|>", b"<|message|>", b"<|start|>", b"<|constrain|>")
"""gpt-oss's tokens are shown."""

_PREFIX = "tokenizer.ggml."

_SHORT = 16
_MOST_MARKS = 4 << 20
"""The most bytes of marks for letters that stand for no byte, in all tokens that are longer than ``_SHORT``: of shorter
ones a text is some thirty times the token at most."""

_INT32, _FLOAT32 = 5, 6

T = TypeVar("T", str, bool, int)


def why_unknown(vocabulary: VocabularyIdentity) -> str | None:
    """Return why a GGUF's vocabulary is not supported, as a clause without its subject; None if it is."""
    kind, pre = vocabulary.kind, vocabulary.pre
    if kind not in _KINDS:
        return f"is of the kind {kind[:_SAID]!r}" if kind else "is of no kind that the file names"
    if kind == "gpt2" and pre not in PRETOKENIZERS:
        return f"cuts texts into words by rules of the name {pre[:_SAID]!r}"
    return None


class GGUFVocabulary:
    """The tokens of a GGUF.

    Attributes:
        texts: as the file has them.
        ids: by text.
        kinds: what each token is: ``NORMAL`` and so on, one or more of them.
        scores: merges of tokens with high scores come first; empty where the file has merges.
        merges: both sides of a merge with a space between them, and its place in their order; empty where the file has
            scores.
        splits: how texts are cut into words; None where they are not.
        bos, eos, unknown: tokens that begin and end texts, and that replace text without a token; -1 for none.
        adds_bos, adds_eos: whether ``bos`` and ``eos`` stand around every text.
        adds_space: whether a space is put before a text, and after each special token.
        ends: the tokens that end a reply.
        takes_before, takes_behind: special tokens that take the white space before or after them.

    Raises:
        UnsupportedModel: the vocabulary contradicts itself.
    """

    def __init__(self, header: GGUFHeader) -> None:
        self._header = header
        kind = self._value("model", "")
        self.has_scores = kind in _SCORED
        pre = "gemma4" if kind == "gemma4" else self._value("pre", "")
        self.splits: PreTokenizer | None = None if self.has_scores else PRETOKENIZERS[pre]
        self._read_tokens()
        self._read_facts(kind)
        self._find_ends()
        self._find_strips(pre)
        if self.splits is not None and self.splits.byte_level:
            self._bound_marks()

    def _refused(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._header.path} has a vocabulary that cannot be used: {why}",
            hint="download or convert the model again",
        )

    def _value(self, key: str, default: T) -> T:
        found = self._header.metadata.get(_PREFIX + key, default)
        if type(found) is not type(default):
            raise self._refused(f"{_PREFIX}{key} is of another type")
        return found

    def _array(self, key: str, *kinds: int) -> GGUFArray | None:
        found = self._header.metadata.get(_PREFIX + key)
        if found is None:
            return None
        if not isinstance(found, GGUFArray) or found.element_type not in kinds:
            raise self._refused(f"{_PREFIX}{key} is of another type")
        return found

    def _read_tokens(self) -> None:
        tokens = self._array("tokens", STRING)
        if tokens is None or not tokens.length:
            raise self._refused("it has no tokens")
        merges = self._array("merges", STRING) if self.splits is not None else None
        if merges is None and self.splits is not None and self.splits.has_merges:
            raise self._refused("it has no merges")
        self.texts = [text or f"[EMPTY_{n}]".encode() for n, text in enumerate(_up_to_zero(tokens))]
        # Ids and ranks of merges share integer objects.
        numbers = [*range(max(tokens.length, merges.length if merges is not None else 0))]
        self.ids = dict(zip(self.texts, numbers, strict=False))
        if len(self.ids) < len(self.texts):
            again = next(text for n, text in enumerate(self.texts) if self.ids[text] != n)
            raise self._refused(f"the token {again[:64].decode(errors='replace')!r} occurs twice")
        self.merges = _ranks(merges, numbers) if merges is not None else {}
        types = self._numbers("token_type", _INT32)
        self.kinds = bytearray([NORMAL]) * len(self.texts)
        if types is not None:
            known = np.where((types < 0) | (types >= len(_BY_TYPE)), 0, types)
            self.kinds = bytearray(np.frombuffer(_BY_TYPE, np.uint8)[known].tobytes())
        scores = self._numbers("scores", _FLOAT32, _INT32) if self.has_scores else None
        self.scores = array("f", bytes(4 * len(self.texts)) if scores is None else scores.astype("<f4").tobytes())
        if scores is not None and np.isnan(scores).any():
            raise self._refused(f"the score of token {int(np.isnan(scores).argmax())} is not a number")

    def _numbers(self, key: str, *kinds: int) -> np.ndarray | None:
        found = self._array(key, *kinds)
        if found is None:
            return None
        if found.length < len(self.texts):
            raise self._refused(f"{_PREFIX}{key} has {found.length} numbers for {len(self.texts)} tokens")
        return np.frombuffer(found.raw(), f"<{VALUE_TYPES[found.element_type]}")[: len(self.texts)]

    def _token(self, key: str, default: int) -> int:
        """Return the token that a key names; the default where there is no such token."""
        token = self._value(f"{key}_token_id", default)
        return next((each for each in (token, default) if 0 <= each < len(self.texts)), -1)

    def _read_facts(self, kind: str) -> None:
        bos, eos, unknown = {"llama": (1, 2, 0), "gpt2": (11, 11, -1)}.get(kind, (-1, -1, -1))
        splits = self.splits or PreTokenizer((), adds_bos=True)
        self.bos = self._token("bos", bos if splits.names_bos else -1)
        self.eos = self._token("eos", eos)
        self.unknown = self._token("unknown", unknown)
        self.adds_bos = self._value("add_bos_token", splits.adds_bos) or splits.whole_newlines
        self.adds_eos = self._value("add_eos_token", False)
        self.adds_space = self._value("add_space_prefix", self.has_scores) and self.has_scores

    def _named(self, names: Iterable[str]) -> Iterator[int]:
        """Yield the tokens with these names."""
        return (self.ids[name.encode()] for name in names if name.encode() in self.ids)

    def _find_ends(self) -> None:
        ends = {self.ids[name] for name in _ENDS if name in self.ids}
        controls = set(ends)
        for keys, names, ends_reply in _FILL_IN:
            token = -1
            for key in keys:
                token = self._token(key, token)
            if token < 0:
                token = min(self._named(names), default=-1)
                controls.add(token)
            if ends_reply:
                ends.add(token)
        for token in controls - {-1}:
            self.kinds[token] |= CONTROL
        for name in _PARTS_OF_MESSAGES:
            if name in self.ids:
                self.kinds[self.ids[name]] = USER_DEFINED
        ends |= {self.eos, self._token("eot", -1), self._token("eom", -1)}
        ends.discard(-1)
        texts = {self.texts[token] for token in ends}
        # gpt-oss ends messages with <|end|>, and Gemma 4 writes </s> as text.
        calls = bool(texts & {b"<|call|>", b"<|calls|>"})
        if b"<|end|>" in texts and calls and texts & {b"<|return|>", b"<|flush|>"}:
            self._no_end(ends, b"<|end|>", USER_DEFINED)
        if b"</s>" in texts and texts & {b"<|tool_response>", b"<|plamo:eos|>"}:
            self._no_end(ends, b"</s>", NORMAL)
        self.ends = frozenset(ends)

    def _no_end(self, ends: set[int], name: bytes, kind: int) -> None:
        ends.discard(self.ids[name])
        self.kinds[self.ids[name]] = kind

    def _find_strips(self, pre: str) -> None:
        architecture = self._header.metadata.get("general.architecture", "")
        name = str(self._header.metadata.get("general.name", "")).lower()
        before: set[int] = set()
        behind: set[int] = set()
        if any(each in pre for each in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
            each in str(architecture) for each in ("nomic-bert-moe", "jina-bert-v3")
        ):
            before.update(self._named(["<mask>"]))
        elif "phi-3" in name or "phi3" in name:
            special = CONTROL | USER_DEFINED | UNKNOWN
            behind.update(token for token, kind in enumerate(self.kinds) if kind & special)
            behind.update(self._named(["</s>"]))
            behind.difference_update(self._named(["<unk>", "<s>", "<|endoftext|>"]))
        elif "modern-bert" in name:
            before.update(self._named(["[MASK]"]))
        self.takes_before, self.takes_behind = frozenset(before), frozenset(behind)

    def _bound_marks(self) -> None:
        """Raise if the texts of tokens would take many times the size of the file."""
        left = _MOST_MARKS
        for token, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if kind == NORMAL and len(text) > _SHORT:
                left -= bytes_of_marks(text, left)
                if left < 0:
                    raise self._refused(
                        f"letters of its tokens stand for no bytes, and the marks for them would take more than "
                        f"{_MOST_MARKS >> 20} MiB at token {token}, of {len(text)} bytes"
                    )


def _ranks(merges: GGUFArray, numbers: list[int]) -> dict[bytes, int]:
    """Return the rank of each merge, the first one if it occurs twice."""
    found = dict(zip(_up_to_zero(merges), numbers, strict=False))
    if len(found) < merges.length:
        found.clear()
        for merge, n in zip(_up_to_zero(merges), numbers, strict=False):
            found.setdefault(merge, n)
    return found


def _up_to_zero(array: GGUFArray) -> Iterator[bytes]:
    """Yield texts up to their first zero byte, where llama.cpp takes them to end."""
    return (text if b"\0" not in text else text.partition(b"\0")[0] for text in array.texts())
