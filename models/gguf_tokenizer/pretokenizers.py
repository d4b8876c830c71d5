"""Rules by which byte-pair vocabularies cut a text into words, for every ``tokenizer.ggml.pre`` of llama.cpp.

An expression with a category, such as ``[\\p{L}]``, is matched in the text whose characters are collapsed to their
categories: beyond ASCII, llama.cpp tells no cases of letters apart, so ``\\p{Lu}`` and ``\\p{Ll}`` are ASCII's own and
all letters beyond. Several cuts are made one after the other, each within the parts that the ones before have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edge_spec.models.gguf_tokenizer.cuts import ascii_digits, grouped_digits, white_space_at_the_end

__all__ = ["PRETOKENIZERS", "Cut", "PreTokenizer"]

Cut = str | Callable[[str, int, int], Iterator[int]]
"""An expression whose matches are parts, or a function that yields the ends of the parts."""


@dataclass(frozen=True)
class PreTokenizer:
    """The rules of one kind of vocabulary: how it cuts texts into words, and its other conventions.

    Attributes:
        cuts: in their order.
        ignore_merges: a word that is a token stays whole.
        adds_bos: a token begins every text, where the file does not say.
        names_bos: there is a token that begins a text even if the file names none.
        byte_level: tokens are written in letters that stand for bytes; else as text, with U+2581 for a space.
        has_merges: the file must have merges.
        whole_newlines: newlines that are a token stay whole; a token begins every text, whatever the file says.
    """

    cuts: tuple[Cut, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    names_bos: bool = True
    byte_level: bool = True
    has_merges: bool = True
    whole_newlines: bool = False


_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}]+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_OR_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
# As \s*[\r\n]+, but reads white space without a newline once.
_LINES = r"(?:[^\S\r\n]*+[\r\n]+)+"
_SPACES = r"\s+(?!\S)|\s+"
_LINES_AND_SPACES = rf"{_LINES}|{_SPACES}"

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|[\p{{N}}]|{_SIGNS}|{_LINES_AND_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|[\p{{N}}]{{1,3}}|{_SIGNS}|{_LINES_AND_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|[\p{{N}}]"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
)
_CASCADE = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = rf"{_CONTRACTION}|{_WORD}|[\p{{N}}]{{1,3}}|{_SIGNS}|{_LINES}|{_CASCADE}|\s{{1,2}}(?!\S)|\s"
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|[\p{{N}}]+|{_SIGNS}|{_LINES_AND_SPACES}"
_BAILING = _QWEN2
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|[\p{{N}}]| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}"
_UFAKZEKA = rf"{_WORD}|[\p{{N}}]|{_SIGNS}|{_LINES_AND_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}](?:[\p{{L}}\p{{M}}]| [\p{{L}}])*|[\p{{N}}]"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|{_LINES_AND_SPACES}"
)
_SIGN_OR_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK3 = rf"{_SIGN_OR_WORD}[\r\n]*|{_LINES_AND_SPACES}"
_SPARK = rf"{_SIGN_OR_WORD}|[\r\n]|{_SPACES}"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}\p{{Han}}]?[\p{{L}}]+(?:{_CONTRACTION})?|[\p{{N}}]{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{HanLetter}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
)


def _cased(capital: str, small: str, numbers: str, contraction: str = "") -> str:
    """Words of capital letters and then small ones, of which one kind may be missing."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{begin}[{capital}]*[{small}]+{contraction}|{begin}[{capital}]+[{small}]*{contraction}"
        rf"|{numbers}|{_SIGNS_OR_SLASHES}|{_LINES_AND_SPACES}"
    )


_TEKKEN = _cased(r"\p{Lu}", r"\p{Ll}", r"[\p{N}]")
_O200K = _cased(r"\p{Lu}", r"\p{Ll}", r"[\p{N}]{1,3}", f"(?:{_CONTRACTION})?")
_GRANITE = _cased(r"\p{Lu}\p{M}", r"\p{Ll}\p{M}", r"[\p{N}]{1,3}", f"(?:{_CONTRACTION})?")
_TINY_AYA = _cased(r"\p{L}\p{M}", r"\p{L}\p{M}", r"[\p{N}]{1,3}", f"(?:{_CONTRACTION})?")
_YOUTU = _cased(r"\p{L}\p{M}", r"\p{L}\p{M}", r"[\p{N}]", f"(?:{_CONTRACTION})?")

_KANA_AND_HAN = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
_EAST_ASIAN = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
_BEFORE_STOPS = r" ?[^(\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
_EUROPEAN_LETTERS = (
    r"\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"
    r"\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    r"\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    r"\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    r"\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
    r"\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    r"\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    r"\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
    r"\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    r"\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+"
)
_SOUTH_EAST_ASIAN = (
    r"[\u4E00-\u9FFF\u3400-\u4DBF\u8C48-\uFAFF\u3040-\u309F\u30A0-\u30FF\uFF65-\uFF9F\u2F00-\u2FDF\u0E40-\u0E7F"
    r"\u0E80-\u0EFF\u1780-\u17FF\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF\uAC00-\uD7AF\u1100-\u11FF]+"
)
_KOREAN_AND_CHINESE = (
    r"[\uAC00-\uD7A3\u3131-\u318E]+"
    r"|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C\u3001-\u303F\uFE30-\uFE4F]+"
    rf"|[\u3105-\u312F]+|{_KANA_AND_HAN}"
)

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"[\p{N}]+", "[0-9][0-9][0-9]"))
_PLAIN = PreTokenizer((_GPT2,))
_BY_DIGIT = PreTokenizer((r"[\p{N}]", _GPT2))
_ONE_DIGIT_WORDS = PreTokenizer((_QWEN2,))
_THREE_DIGIT_WORDS = PreTokenizer((_LLAMA3,))
_LLAMA_3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_GLM = PreTokenizer((_LLAMA3,), names_bos=False)
_DEEPSEEK_3 = PreTokenizer((r"[\p{N}]{1,3}", _KANA_AND_HAN, _DEEPSEEK3))
_CASED_WORDS = PreTokenizer((_O200K,))
_STOPS = PreTokenizer((_BEFORE_STOPS,))
_AYA = PreTokenizer((grouped_digits, _TINY_AYA))
_BAILING_MOE = PreTokenizer((_BAILING,))
_WHOLE_LINES = PreTokenizer((r"[^\n]+|[\n]+",), byte_level=False)
_GEMMA_4 = replace(_WHOLE_LINES, adds_bos=True, whole_newlines=True)

PRETOKENIZERS = {
    "": _DEFAULT,
    "default": _DEFAULT,
    "minicpm5": PreTokenizer((r"[\p{N}]{1,3}", _MINICPM5), ignore_merges=True),
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama-bpe": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "falcon-h1": _LLAMA_3,
    "pixtral": _LLAMA_3,
    "midm-2.0": _LLAMA_3,
    "lfm2": _LLAMA_3,
    "jina-v5-nano": _LLAMA_3,
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            _EUROPEAN_LETTERS,
            r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
            white_space_at_the_end,
            _EAST_ASIAN,
            r"[\p{N}]+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?[\p{L}]+", r"\s?[\p{P}]+", _EAST_ASIAN, r"[\p{N}]")),
    "deepseek-v3": _DEEPSEEK_3,
    "hunyuan-dense": _DEEPSEEK_3,
    "joyai-llm": _DEEPSEEK_3,
    "hy_v4": _DEEPSEEK_3,
    "spark2_5": PreTokenizer((r"[\p{N}]{1,3}", _KANA_AND_HAN, _SPARK, r"[\p{N}]")),
    "youtu": PreTokenizer((_KOREAN_AND_CHINESE, _YOUTU), ignore_merges=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "mpt": _PLAIN,
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "jina-es": _PLAIN,
    "jina-de": _PLAIN,
    "gigachat": _PLAIN,
    "jina-v2-es": _PLAIN,
    "jina-v2-de": _PLAIN,
    "a.x-4.0": _PLAIN,
    "mellum": _PLAIN,
    "modern-bert": _PLAIN,
    "jina-v1-en": _PLAIN,
    "jina-v2-code": _PLAIN,
    "roberta-bpe": _PLAIN,
    "olmo": _PLAIN,
    "jais": _PLAIN,
    "trillion": _PLAIN,
    "granite-docling": _PLAIN,
    "exaone4": _PLAIN,
    "starcoder": _BY_DIGIT,
    "refact": _BY_DIGIT,
    "command-r": _BY_DIGIT,
    "smollm": _BY_DIGIT,
    "codeshell": _BY_DIGIT,
    "exaone": _BY_DIGIT,
    "minerva-7b": _BY_DIGIT,
    "mellum2": _BY_DIGIT,
    "jais-2": PreTokenizer((_JAIS2,)),
    "gemma4": _GEMMA_4,
    "granite-embed-multi-311m": _GEMMA_4,
    "sarvam-moe": _WHOLE_LINES,
    "qwen2": _ONE_DIGIT_WORDS,
    "deepseek-r1-qwen": _ONE_DIGIT_WORDS,
    "kormo": _ONE_DIGIT_WORDS,
    "f2llmv2": _ONE_DIGIT_WORDS,
    "stablelm2": _ONE_DIGIT_WORDS,
    "megrez": _ONE_DIGIT_WORDS,
    "hunyuan": _ONE_DIGIT_WORDS,
    "solar-open": _ONE_DIGIT_WORDS,
    "grok-2": _ONE_DIGIT_WORDS,
    "qwen35": PreTokenizer((_QWEN35,)),
    "dbrx": _THREE_DIGIT_WORDS,
    "smaug-bpe": _THREE_DIGIT_WORDS,
    "poro-chat": _STOPS,
    "bloom": _STOPS,
    "gpt3-finnish": _STOPS,
    "viking": PreTokenizer((_BEFORE_STOPS, r"[\p{N}]")),
    "chatglm-bpe": _GLM,
    "glm4": replace(_GLM, ignore_merges=True),
    "glm5": replace(_GLM, ignore_merges=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"[\p{N}]",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "gpt-4o": _CASED_WORDS,
    "llama4": _CASED_WORDS,
    "kanana2": _CASED_WORDS,
    "talkie": _CASED_WORDS,
    "minimax-m2": _CASED_WORDS,
    "granite-embed-multi-97m": PreTokenizer((_GRANITE,), ignore_merges=True),
    "tiny_aya": _AYA,
    "cohere2moe": _AYA,
    "superbpe": PreTokenizer((r"[\p{N}]+", ascii_digits)),
    "bailingmoe": _BAILING_MOE,
    "bailingmoe2": _BAILING_MOE,
    "llada-moe": _BAILING_MOE,
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "kimi-k2": PreTokenizer((_KIMI,), has_merges=False),
    "ufakzeka": PreTokenizer((_UFAKZEKA,)),
    "afmoe": PreTokenizer((grouped_digits, _SOUTH_EAST_ASIAN, _DEEPSEEK3)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
}
"""The pre-tokenizers by their name in the file. ``whitespace`` and vocabularies of other kinds are left to
llama.cpp."""
