"""Stories: what is loaded, and what is asked of it in which order. Plain values, drawn at random, the same by number.

A story is a dictionary: ``model``, ``engine``, ``draft_engine``, ``mode``, ``load`` (further options of ``load``),
``threads`` (of plain decoding, where threads do not round), ``limits`` (a seed of random limits of drafts), ``tight``
(no memory for a second text), ``seed`` (of everything else), and ``steps``. A step is a list of what is asked side by
side. An ask is a dictionary, one of

- ``prompt``, or ``prompts`` of a text each, or a prompt with ``n``: with ``options`` of ``generate``;
- ``chat``, the number of a conversation, with ``verb`` and, of some verbs, ``text``;
- ``do``: ``save`` all conversations and load them again, ``reopen`` the model besides, or ``rest`` for memory's sake.

``leave`` stops it after so many pieces; ``drops`` does so by forgetting it, and with ``stays`` it is not read on before
all others have been read. What is stopped of a conversation is continued. ``raises``: its reader raises when it is told
that so many pieces of the prompt have been read. ``threads`` in an ask: it is read in a thread of its own. ``events``:
token by token.

Stories of ``company`` have 17 and more asks side by side, conversations with one ``system`` prompt among them, and
cells for so many ``texts``. Those that are ``interrupted`` play on llama.cpp, and every conversation is compared with
one that has a model of its own (``apart``), which no other text ever interrupts.
"""

from __future__ import annotations

import random
from typing import Any

from hunted_models import INTERRUPTED, LARGE, names
from json_schemas import SCHEMAS

__all__ = ["company", "interrupted", "story"]


def _engines(name: str) -> tuple[str, ...]:
    if name.startswith("hybrid ") and name not in ("hybrid lfm2", "hybrid qwen35"):
        return ("llama",)
    return ("onnx",) if name.startswith(("head", "published ")) else ("onnx", "llama")


_OF_DEMO = ("demo", "trimmed", "head", "head as published", "head in safetensors")
_MODES = ("off", "sequence", "tree", "hierarchy", "ngram", "auto", "seer", "seer", "seer trees", "seer trees", "random")
_ALONE = ("off", "ngram", "auto", "seer", "seer", "seer trees")
_TEXTS = (
    "Tell me a story about a dog.",
    "Why is the sky blue?",
    "Hi!",
    "abcabcabc",
    "The cat sat on the mat. The cat sat on the mat. The cat",
    "def area(width, height):\n    return",
    "Zwölf Boxkämpfer — 東京 🙂",
    "Once upon a time there was a small dog who lived in a big house near the sea, and every day " * 2,
    "one two three four five six seven eight nine ten " * 8,
)
_GRAMMARS = (
    'root ::= [a-z ]{5,40} "."',
    'root ::= ("yes" | "no" | "may" "be"?) (" " root)?',
    'root ::= "The " ("dog" | "cat") " is " [a-z]+ "."\n',
    'root ::= "(" root? ")" root?',
)
# No token is this character: it is spelled.
_SPELLED = 'root ::= [a-z ]{0,3} "東"'


def story(number: int) -> dict[str, Any]:
    """Draw a story."""
    chance = random.Random(number)
    # Half of all are about the demo, whose drafters guess well.
    model = chance.choice(("demo", "demo", "demo", "trimmed", "head", *["any"] * 5))
    model = chance.choice(names()) if model == "any" else model
    engine = chance.choice(_engines(model))
    is_small = model not in _OF_DEMO
    loading: dict[str, Any] = {"n_ctx": chance.choice((32, 64, 64, 100, 160, 160, 256, 256, 400))}
    loading["n_threads"] = chance.choice((1, 1, 1, 1, 1, 2, 3))
    if chance.random() < 0.3:
        loading["max_rows"] = chance.choice((1, 2, 3, 5, 8, 16, 40, 64))
    if chance.random() < 0.3:
        loading["prefill_chunk"] = max(loading.get("max_rows", 16), chance.choice((16, 32, 64, 100, 512)))
    if chance.random() < 0.15 and not model.startswith("published"):
        kind = chance.choice(("f16", "f32") if engine == "onnx" else ("f16", "q8_0"))
        loading |= {"kv_k": kind, "kv_v": kind}
    if engine == "llama" and chance.random() < 0.2:
        loading["repack"] = False
    modes = _ALONE if model.startswith("published") else ("seer", *_MODES[1:]) if is_small else _MODES
    told = {
        "model": model,
        "engine": engine,
        "mode": chance.choice(modes),
        "load": loading,
        "threads": chance.choice((1, 1, 1, 1, 2, 3)),
        "limits": chance.choice((None, chance.randrange(1 << 20))),
        "tight": chance.random() < 0.1,
        "seed": chance.randrange(1 << 20),
        "steps": [],
    }
    if len(_engines(model)) > 1 and chance.random() < 0.2:
        told["draft_engine"] = chance.choice(("onnx", "llama"))
    chats = not model.startswith("published")
    told["steps"] = [_step(chance, chats=chats) for _ in range(chance.choice((2, 4, 6, 9)))]
    return told


def company(number: int) -> dict[str, Any]:
    """Draw a story of many texts in company, mostly on our engine, whose cells are a pool."""
    chance = random.Random(f"company {number}")
    # What publishers convert knows one text.
    others = [name for name in names() if not name.startswith("published ")]
    model = chance.choice(("demo", "demo", "demo", "head", "trimmed", "llama", *[chance.choice(others)] * 6))
    engine = chance.choice((*[_engines(model)[0]] * 3, _engines(model)[-1]))
    loading: dict[str, Any] = {"n_ctx": chance.choice((100, 160, 160, 256, 400)), "n_threads": chance.choice((1, 1, 2))}
    if chance.random() < 0.5:
        kind = chance.choice(("f16", "f16", "f32") if engine == "onnx" else ("f16", "q8_0"))
        loading |= {"kv_k": kind, "kv_v": kind}
    if chance.random() < 0.3:
        loading["max_rows"] = chance.choice((3, 8, 32, 64))
    steps = []
    for _ in range(chance.choice((1, 2, 3))):
        sessions = list(range(6))
        asks = [_ask(chance, sessions, chats=True) for _ in range(chance.choice((17, 17, 20, 24)))]
        for ask in asks:
            is_single = "prompt" in ask and "n" not in ask
            if is_single and chance.random() < 0.1:
                ask["raises"] = chance.choice((1, 1, 2))
            elif is_single and "leave" in ask and chance.random() < 0.5:
                ask |= {"stays": True, "drops": False, "threads": False}
            if is_single and chance.random() < 0.1:
                ask["options"] |= {"grammar": _SPELLED, "json_schema": None}
        steps.append(asks)
    modes = ("seer", *_MODES[1:]) if model not in _OF_DEMO else _MODES
    return {
        "model": model,
        "engine": engine,
        "mode": chance.choice(modes),
        "load": loading,
        "threads": chance.choice((1, 1, 2)),
        "limits": chance.choice((None, chance.randrange(1 << 20))),
        "tight": False,
        "system": chance.choice(("", "You are a friend. " * 4, "You are a dog that can talk, and you like it. " * 3)),
        "texts": chance.choice((None, 8, 8, 8, 4)),
        "seed": chance.randrange(1 << 20),
        "steps": steps,
    }


_CACHES = ("auto", "q8_0", "f16", "f16", "f16", "f32", "f32", "bf16", "f16/q8_0", "q8_0/f16", "f32/f16")


def interrupted(number: int) -> dict[str, Any]:
    """Draw a story of conversations on llama.cpp that wait, are saved, change and outgrow the context."""
    chance = random.Random(f"interrupted {number}")
    model = INTERRUPTED[number % len(INTERRUPTED)]
    keys, _, values = chance.choice(_CACHES).partition("/")
    # Few kinds, since each is probed once; and few rows, which are probed sooner.
    loading: dict[str, Any] = {"n_ctx": chance.choice((33, 64, 96, 160, 288, 512)), "max_rows": 4}
    loading |= {"n_threads": chance.choice((1, 1, 1, 2)), "kv_k": keys, "kv_v": values or keys}
    if "q8_0" not in (keys, values) and chance.random() < 0.25:
        loading["flash_attention"] = False
    if chance.random() < 0.1:
        loading |= chance.choice(({"prefill_chunk": 32}, {"prefill_chunk": 100}, {"repack": False}, {"max_rows": 8}))
    # Some in company, and some with a text or two, of which each waits for the other.
    in_company = chance.random() < 0.1
    n_chats = 3 if not in_company else 5 if model in LARGE else 17
    steps: list[list[dict[str, Any]]] = []
    for _ in range(2 if in_company else chance.choice((5, 8, 12))):
        if steps and chance.random() < 0.3:
            steps.append([{"do": chance.choice(("save", "save", "reopen", "save its text"))}])
            continue
        sessions = chance.sample(range(n_chats), n_chats)
        n = n_chats if in_company else chance.choice((1, 2, 2, 3))
        steps.append([_ask(chance, sessions, chats=True, chat_share=0.85) for _ in range(n)])
    return {
        "model": model,
        "engine": "llama",
        "apart": True,
        "mode": chance.choice(("off", "off", "ngram", "seer", "seer trees")),
        "load": loading,
        "threads": 1,
        "limits": None,
        "tight": chance.random() < 0.05,
        "system": chance.choice(("", "", "You are a friend. " * 4)),
        "seed": chance.randrange(1 << 20),
        "steps": steps,
    }


def _step(chance: random.Random, *, chats: bool) -> list[dict[str, Any]]:
    if chance.random() < 0.15:
        return [{"do": chance.choice(("save", "save", "reopen", "save its text", "rest")) if chats else "rest"}]
    n = chance.choice((1, 1, 1, 2, 3, 5))
    # A conversation has one answer at a time.
    sessions = chance.sample(range(4), 4)
    return [_ask(chance, sessions, chats=chats) for _ in range(n)]


def _ask(chance: random.Random, sessions: list[int], *, chats: bool, chat_share: float = 0.45) -> dict[str, Any]:
    made: dict[str, Any]
    if chats and sessions and chance.random() < chat_share:
        made = {"chat": sessions.pop(), "verb": chance.choice((*["send"] * 6, "retry", "edit", "undo"))}
        made["text"] = chance.choice(_TEXTS)
        made["options"] = _options(chance)
        made["options"].pop("stop", None)
    else:
        kind = chance.random()
        made = {"prompt": chance.choice(_TEXTS)} if kind < 0.85 else {}
        if kind < 0.15:
            made["n"] = chance.choice((1, 2, 4, 7))
        elif kind >= 0.85:
            made["prompts"] = [chance.choice(_TEXTS) for _ in range(chance.choice((1, 2, 4, 9)))]
        made["options"] = _options(chance)
        made["options"]["raw"] = not chats or chance.random() < 0.5
        if chance.random() < 0.3:
            made["options"]["reuse"] = True
        if chance.random() < 0.1:
            made["options"]["attempt"] = chance.randrange(5)
        if chance.random() < 0.15 and "n" not in made and "prompts" not in made:
            made["events"] = True
            made["options"]["logprobs"] = chance.choice((0, 1, 5))
    if chance.random() < 0.2:
        made["leave"] = chance.choice((1, 1, 2, 5, 12))
        made["drops"] = chance.random() < 0.5
    if chance.random() < 0.1:
        made["threads"] = True
    return made


def _options(chance: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"seed": chance.randrange(1 << 16), "max_tokens": chance.choice((1, 4, 12, 24, 40, 60))}
    made["temperature"] = chance.choice((0, 0, 0.3, 0.8, 0.8, 1.0, 1.5))
    if chance.random() < 0.5:
        made["ignore_eos"] = True
    filters: tuple[dict[str, Any], ...] = (
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.2},
        {"typical_p": 0.6},
        {"top_n_sigma": 1.0},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1},
        {"repeat_penalty": 1.3, "penalty_window": -1},
        {"frequency_penalty": 0.5, "presence_penalty": -0.2},
        {"logit_bias": {"260": 2.0, "300": -1.0, "40": 1.0}},
    )
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        made |= chance.choice(filters)
    guided = chance.random()
    if guided < 0.06:
        made["grammar"] = chance.choice(_GRAMMARS)
    elif guided < 0.12:
        made["json_schema"] = SCHEMAS[chance.choice([*SCHEMAS])]
    elif guided < 0.25:
        made["stop"] = chance.choice((["the"], ["."], ["a", " "], ["\n"]))
    return made
