"""The vocabulary that the three models share: byte-level BPE of the ``tokenizers`` library.

Before merging, text is split as by llama.cpp's ``smollm`` pre-tokenizer: every digit alone, then GPT-2's pattern.
Single digits let small models copy times and sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_spec.errors import BAD_RECORD, ModelFileError
from edge_spec.foreign import parse_json
from edge_spec.training.corpus import Document, Span

__all__ = ["END", "PRE_TOKENIZER", "SPECIAL", "TextEncoder", "make_vocabulary", "vocabulary_fields"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
"""Ids 0 to 3."""

END = 0
"""End of text, between training texts."""

PRE_TOKENIZER = "smollm"
"""llama.cpp's name for how text is split before merging."""


def make_vocabulary(documents: Iterable[Document], *, n_vocab: int, path: Path) -> None:
    """Make a vocabulary from the words of documents, and write it as a ``tokenizer.json``.

    Raises:
        ModelFileError: there are too few different words for so many tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_words(documents), trainer)
    n_made = tokenizer.get_vocab_size()
    if n_made != n_vocab:
        raise ModelFileError(
            f"the texts give only {n_made} of {n_vocab} tokens", hint="give more text, or choose a smaller vocabulary"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def _words(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        for span in document.spans:
            if not span.special:
                yield span.text


class TextEncoder:
    """Text to token ids and back, by a ``tokenizer.json``."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(path))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; names of special tokens in it become these tokens."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def encode_spans(self, spans: Sequence[Span]) -> list[list[int]]:
        """Token ids of each span. They are those of the joined text, since special tokens separate the spans."""
        return self.encode([span.text for span in spans])

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def vocabulary_fields(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Texts and types of all tokens by id, and the merges, in the form that a GGUF stores.

    Raises:
        ModelFileError: the file is not a vocabulary that ``make_vocabulary`` has written.
    """
    try:
        model = parse_json(path.read_text(encoding="utf-8"))["model"]
        tokens = [text for text, _ in sorted(model["vocab"].items(), key=lambda item: int(item[1]))]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    except (OSError, *BAD_RECORD) as error:
        raise ModelFileError(
            f"{path} is not a valid vocabulary ({error!r})", hint="prepare the corpus again"
        ) from error
    if tuple(tokens[: len(SPECIAL)]) != SPECIAL:
        raise ModelFileError(f"{path} does not begin with {SPECIAL[0]}", hint="prepare the corpus again")
    control, normal = 3, 1
    return tokens, [control if number < len(SPECIAL) else normal for number in range(len(tokens))], merges
