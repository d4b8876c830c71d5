"""Convert text to tokens and back by the vocabulary of a GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache

from edge_spec.errors import Closed
from edge_spec.memory.usage import trim_heap
from edge_spec.models.gguf.header import GGUFHeader
from edge_spec.models.gguf_tokenizer.letters import bytes_of_letters
from edge_spec.models.gguf_tokenizer.merging import by_place, by_score, merged
from edge_spec.models.gguf_tokenizer.special_tokens import SpecialTokens
from edge_spec.models.gguf_tokenizer.splitting import Splitter
from edge_spec.models.gguf_tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    GGUFVocabulary,
)
from edge_spec.tokens.byte_letters import BYTE_LETTERS
from edge_spec.tokens.known_tokens import ListedTokens, require_unicode

__all__ = ["GGUFTokenizer"]

_LETTERS = [BYTE_LETTERS[byte].encode() for byte in range(256)]
_REMEMBERED_WORDS, _REMEMBERED_LENGTH = 1 << 13, 48


class _Words:
    """Tokenizes single words by a vocabulary."""

    def __init__(self, vocabulary: GGUFVocabulary, name: str, *, is_byte_level: bool) -> None:
        self._known: GGUFVocabulary | None = vocabulary
        self._name = name
        self._is_byte_level = is_byte_level

    @property
    def vocabulary(self) -> GGUFVocabulary:
        """The vocabulary."""
        if self._known is None:
            raise Closed(f"the model {self._name}")
        return self._known

    def close(self) -> None:
        """Free the vocabulary. Safe to call twice."""
        self._known = None

    def read(self, word: str) -> Sequence[int]:
        """Return the token ids of a word."""
        vocabulary = self.vocabulary
        ids, splits = vocabulary.ids, vocabulary.splits
        raw = word.encode()
        if self._is_byte_level:
            parts = [_LETTERS[byte] for byte in raw]
            raw = b"".join(parts)
        else:
            parts = [letter.encode() for letter in word]
        if splits is not None and (splits.ignore_merges or (splits.whole_newlines and not word.strip("\n"))):
            whole = ids.get(raw)
            if whole is not None:
                return (whole,)
        found: list[int] = []
        order = by_place(vocabulary.merges) if splits is not None else by_score(ids, vocabulary.scores)
        for part in merged(parts, order):
            token = ids.get(part)
            if token is not None:
                found.append(token)
            else:
                found += self._bytes_of(part)
        return tuple(found)

    def _bytes_of(self, part: bytes) -> list[int]:
        """Return the byte tokens of a text that is not a token."""
        vocabulary = self.vocabulary
        ids = vocabulary.ids
        if self._is_byte_level:
            return [ids[letter] for byte in part if (letter := bytes([byte])) in ids]
        found = [ids.get(b"<0x%02X>" % byte, -1) for byte in part]
        if vocabulary.splits is None:
            found = [
                ids.get(bytes([byte]), -1) if token < 0 else token for byte, token in zip(part, found, strict=True)
            ]
            if -1 in found:
                return [vocabulary.unknown] if vocabulary.unknown >= 0 else []
        return [token for token in found if token >= 0]


class GGUFTokenizer(ListedTokens):
    """The tokenizer of a GGUF. Usable from any thread.

    Raises:
        UnsupportedModel: the vocabulary contradicts itself.
    """

    def __init__(self, header: GGUFHeader) -> None:
        super().__init__()
        vocabulary = GGUFVocabulary(header)
        self.n_vocab = len(vocabulary.texts)
        self.bos, self.eos = vocabulary.bos, vocabulary.eos
        self.adds_bos = vocabulary.adds_bos and self.bos >= 0
        splits = vocabulary.splits
        self._splitter = Splitter(splits.cuts) if splits is not None else None
        self._is_byte_level = splits is not None and splits.byte_level
        self._words = _Words(vocabulary, header.path.name, is_byte_level=self._is_byte_level)
        # Cache another object's method: else the tokenizer would refer to itself until a garbage collection.
        self._word_ids = lru_cache(_REMEMBERED_WORDS)(self._words.read)
        self._joints = None if self._is_byte_level else _joints(vocabulary)
        # Free outgrown tables.
        trim_heap()

    @property
    def _vocabulary(self) -> GGUFVocabulary:
        return self._words.vocabulary

    def close(self) -> None:
        """Free its tables. Safe to call twice."""
        self._words.close()
        self._word_ids.cache_clear()

    def tokenize(self, text: str, *, add_special: bool, controls: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: add the tokens that the model expects around every text.
            controls: names of control tokens in it become these tokens; else they are text.

        Raises:
            PromptError: the text contains lone surrogates.
        """
        vocabulary = self._vocabulary
        require_unicode(text)
        tokens = [self.bos] if add_special and self.adds_bos else []
        begins = vocabulary.adds_space
        for piece in [text] if controls else self._apart.split(text):
            for part in (self._special if controls else self._defined).parts(piece):
                if isinstance(part, int):
                    tokens.append(part)
                    begins = vocabulary.adds_space
                else:
                    tokens += self._ids(f" {part}" if begins else part)
                    begins = False
        if add_special and vocabulary.adds_eos and self.eos >= 0:
            tokens.append(self.eos)
        return tokens

    def _ids(self, text: str) -> list[int]:
        """Return the token ids of a text that holds no special tokens."""
        if not self._is_byte_level:
            text = text.replace(" ", "\u2581")
        found: list[int] = []
        for word in self._splitter.words(text) if self._splitter is not None else (text,):
            if self._joints is not None and "\u2581" in word:
                for part in self._joints.split(word):
                    found += self._ids_of_word(part)
            else:
                found += self._ids_of_word(word)
        return found

    def _ids_of_word(self, word: str) -> Sequence[int]:
        return self._word_ids(word) if len(word) <= _REMEMBERED_LENGTH else self._words.read(word)

    def _controls(self) -> Iterator[int]:
        return self._of_kinds(CONTROL | UNKNOWN)

    def _found_anywhere(self) -> Iterator[int]:
        # Vocabularies without words put a space before texts.
        return self._of_kinds(USER_DEFINED if self._splitter is not None else 0, but=CONTROL | UNKNOWN)

    def _of_kinds(self, kinds: int, but: int = 0) -> Iterator[int]:
        """Return the tokens of some kinds."""
        return (token for token, kind in enumerate(self._vocabulary.kinds) if kind & kinds and not kind & but)

    @cached_property
    def _special(self) -> SpecialTokens:
        return self._found_first(CONTROL | UNKNOWN | USER_DEFINED)

    @cached_property
    def _defined(self) -> SpecialTokens:
        """The special tokens to find where control tokens are text."""
        return self._found_first(USER_DEFINED, but=CONTROL | UNKNOWN)

    def _found_first(self, kinds: int, but: int = 0) -> SpecialTokens:
        """Return the tokens of some kinds, which are found in a text before the rest is tokenized."""
        vocabulary = self._vocabulary
        names: dict[str, int] = {}
        for token in self._of_kinds(kinds, but):
            with suppress(UnicodeDecodeError):  # no text has it
                names[vocabulary.texts[token].decode()] = token
        return SpecialTokens(names, takes_before=vocabulary.takes_before, takes_behind=vocabulary.takes_behind)

    def _read_bytes(self, token: int, *, special: bool = False) -> bytes:
        vocabulary = self._vocabulary
        if not 0 <= token < len(vocabulary.texts):
            return b""
        text, kind = vocabulary.texts[token], vocabulary.kinds[token]
        if kind & (CONTROL | UNKNOWN):
            return text if special else b""
        if kind & USER_DEFINED:
            return text
        if kind & NORMAL:
            return bytes_of_letters(text) if self._is_byte_level else text.replace(SPACE, b" ")
        return _of_hexadecimal(text) if kind & BYTE else b""

    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""
        return token in self._vocabulary.ends


def _joints(vocabulary: GGUFVocabulary) -> re.Pattern[str]:
    """Return where text is cut into words that never are parts of one token: before spaces, after most characters."""
    merges = (merge.replace(b" ", b"") for merge in vocabulary.merges if merge.find(SPACE, 1) > 0)
    joined = merges if vocabulary.merges else (text for text in vocabulary.texts if text.find(SPACE, 1) > 0)
    before = set("\u2581")
    for text in joined:
        before.update(re.findall("(.)\u2581", text.decode(errors="replace"), re.DOTALL))
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(before)))}])(?=\u2581)")


def _of_hexadecimal(text: bytes) -> bytes:
    """Return the byte that a token such as ``<0x0A>`` stands for."""
    digits = re.match(rb"[0-9A-Fa-f]*", text[3:5])
    return bytes([int(digits[0], 16)]) if digits is not None and digits[0] else b"\0"
