"""Texts drawn by number, of all that tokenizers cut in different ways."""

from __future__ import annotations

import random
from collections.abc import Sequence

_SCRIPTS = """
a·Hello·hello world·THE·MiXed·don't·I'LL·we've·'S·it's'·'ſ·'\u212a·xxxxxxxxxxxxxxxxxxxx·é·e\u0301·\u0301·a\u0300b
ü·ñandú·Привет·мир·ΑΒΓ·αβγ·ﬁ·Ǆ·ᵃ·ʼ·中文·汉字漢字·〇·日本語·ひらがな·カタカナ·ー·･·한국어·ㄱㅏ·ㄅ·㐀·\U00020000·豈·\u9fff·\ufad9·\ufada
一·\u9fa6·\u0800·\U0002fa1e·\U0002ebe1·العربية·۱۲۳·हिन्दी·१२३·ไทย·\u0e33·\u1050·ខ្មែរ·\ua9e0·\uaa60·\u1100·𐐀·𞤀
"""
_SIGNS = """
🙂·😀😀·👨\u200d👩\u200d👧\u200d👦·🏳\ufe0f\u200d🌈·👍🏽·🇩🇪·\u200d·\ufe0f·\u200b·\ufeff·\u00ad·0·1·12·123·1234567·½·Ⅷ·²·٣·1.5e-10
2024-01-31·١٢٣٤٥·1a2b3c4d·$·€·+·<=>·^·~·`·|·-·--·...·…·、·。·，·！·«·»·“·”·’·_·/·//·\\·{·}·[·]·(·)·<·<|·|>·>·#x·!word·@—·।·︰
▁·▁▁·▁a·\ue000·\U0010ffff·\ufffe·\U000e0001·𝔘·\u0378·\U0003ffff·IMGIMGABZ·<sentinel:12>·<s>·</s>·<0x0A>·<unk>·\ufffd
"""
_SPACES = (
    *(
        " ",
        " ",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        " \n",
        "\n ",
        "\v",
        "\f",
        "\n\n\n\n",
        "\x00",
        "\x01",
    ),
    *("\x1c", "\x1f", "\x7f", "\x85", "\xa0", "\u2028", "\u3000", "\u2003", "\u180e", "\u1680", "\u202f"),
)
PIECES = (*"·".join((_SCRIPTS + _SIGNS).split("\n")).strip("·").split("·"), *_SPACES, "def f(x):\n    return x\n")
"""Scripts, emoji with joiners, numbers, signs, names of tokens, characters that no version has, and white space."""


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
