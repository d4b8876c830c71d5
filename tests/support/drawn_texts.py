"""Texts drawn by number, of all that tokenizers cut in different ways."""

from __future__ import annotations

import random
from collections.abc import Sequence

PIECES = (
    *("a", "Hello", "hello world", "THE", "MiXed", "don't", "I'LL", "we've", "'S", "it's'", "'\u017f", "'\u212a", "x" * 30),
    *("é", "e\u0301", "\u0301", "a\u0300b", "ü", "ñandú", "Привет", "мир", "ΑΒΓ", "αβγ", "\ufb01", "\u01c4", "\u1d43", "\u02bc"),
    *("中文", "汉字漢字", "\u3007", "日本語", "ひらがな", "カタカナ", "\u30fc", "\uff65", "한국어", "\u3131\u314f", "\u3105", "\u3400"),
    *("\U00020000", "\uf900", "\u9fff", "\ufad9", "\ufada", "\u4e00", "\u9fa6", "\u0800", "\U0002fa1e", "\U0002ebe1"),
    *("العربية", "۱۲۳", "हिन्दी", "१२३", "ไทย", "\u0e33", "\u1050", "ខ្មែរ", "\ua9e0", "\uaa60", "\u1100", "\U00010400", "\U0001e900"),
    *("🙂", "😀😀", "👨\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇩🇪", "\u200d", "\ufe0f", "\u200b", "\ufeff", "\u00ad"),
    *("\x00", "\x01", "\x1c", "\x1f", "\x7f", "\x85", "\xa0", "\u2028", "\u3000", "\u2003", "\u180e", "\u1680", "\u202f"),
    *(" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \n", "\n ", "\v", "\f", "\n\n\n\n"),
    *("0", "1", "12", "123", "1234567", "½", "\u2167", "²", "\u0663", "1.5e-10", "2024-01-31", "١٢٣٤٥", "1a2b3c4d"),
    *("$", "€", "+", "<=>", "^", "~", "`", "|", "-", "--", "...", "…", "、", "。", "\uff0c", "\uff01", "«", "»", "\u201c", "\u201d"),
    *("\u2019", "_", "/", "//", "\\", "{", "}", "[", "]", "(", ")", "<", "<|", "|>", ">", "#x", "!word", "@\u2014", "\u0964", "\ufe30"),
    *("\u2581", "\u2581\u2581", "\u2581a", "\ue000", "\U0010ffff", "\ufffe", "\U000e0001", "\U0001d518", "\u0378", "\U0003ffff"),
    *("IMGIMGABZ", "<sentinel:12>", "def f(x):\n    return x\n", "<s>", "</s>", "<0x0A>", "<unk>", "\ufffd"),
)
"""Scripts, emoji with joiners, white space, numbers, signs, names of tokens, and characters that no version has."""


def drawn_text(draw: random.Random, names: Sequence[str]) -> str:
    """Return a text.

    Args:
        names: of special tokens, of which some are put into it.
    """
    return "".join(_piece(draw, names) for _ in range(draw.choice((1, 2, 3, 5, 8, 13, 30))))


def _piece(draw: random.Random, names: Sequence[str]) -> str:
    kind = draw.random()
    if kind < 0.08 and names:
        return draw.choice(names)
    if kind < 0.8:
        return draw.choice(PIECES)
    if kind < 0.92:
        code = draw.randrange(0x110000 if kind < 0.86 else 0x3000)
        return "q" if 0xD800 <= code < 0xE000 else chr(code)
    return draw.choice(" \n\t0abÀ") * draw.randrange(1, 40)
