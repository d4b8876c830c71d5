"""What ``compare_checkouts.py`` asks of both versions: tables of models, prompts, settings and calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from checkout_commands import calls_of, chains_of

__all__ = ["PROMPTS", "task_of"]

PROMPTS = (
    "Tell me a short story about a dog who is afraid of the rain.",
    "Hello! How are you today?",
    "What is your favourite kind of music, and why?",
    "The king looked out of the window and saw",
    "Can you book a table for four people in an Italian restaurant on Friday?",
    "Why is the sky blue?",
)

_MODES = ("off", "auto", "ngram", "sequence", "tree", "hierarchy")
_LLAMA: dict[str, Any] = {"engine": "llama", "n_threads": 1}
_ONNX: dict[str, Any] = {"engine": "onnx", "n_threads": 1}
_ENGINES = (("llama", _LLAMA), ("onnx", _ONNX))

_SAMPLERS: dict[str, dict[str, Any]] = {
    "top-k": {"top_k": 5},
    "top-k 0": {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.3},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.2},
    "typical": {"typical_p": 0.7},
    "n-sigma": {"top_n_sigma": 1.0},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "penalties, greedy": {"repeat_penalty": 1.2, "penalty_window": -1, "temperature": 0.0},
    "dry": {"dry_multiplier": 0.9, "dry_allowed_length": 1, "dry_breakers": ["\n", "."]},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "bias": {"logit_bias": {"300": 3.5, "301": -float("inf"), "450": -2.0}},
    "second attempt": {"attempt": 1},
    "stop": {"stop": [" was", " to"]},
    "stop, one letter": {"stop": "g"},
    "no end": {"ignore_eos": True},
}

_GRAMMAR = 'root ::= "The " ("dog" | "cat" | "king") " " ("ran" | "slept") (" and " [a-z]{3,9})? "."'
_WORD = {"type": "string", "minLength": 1, "maxLength": 12}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "required": ["name", "age"],
        "additionalProperties": False,
        "properties": {
            "name": _WORD,
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": ["string", "null"], "maxLength": 12},
        },
    },
    "list": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"tag": _WORD, "when": {"type": "string", "format": "date"}},
            "required": ["tag", "when"],
        },
    },
    "choice": {
        "type": "object",
        "required": ["größe", "mood"],
        "properties": {"größe": {"enum": ["groß", "klein", 3, None]}, "mood": {"enum": ["happy", "sad"]}},
    },
}


def task_of(prompts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All parts by section."""
    return {
        "parts": {
            "replies": {"setups": _reply_setups(quick), "cases": _reply_cases(prompts)},
            "structured": {"setups": _structured_setups(quick), "cases": _structured_cases()},
            "tables": {"n": 3},
            "chat": {
                "setups": _setups(("hierarchy",) if quick else _MODES, more={"n_ctx": 256}),
                "script": _chat_script(prompts),
            },
            "saved": {
                "setups": _setups(("off", "hierarchy") if quick else ("off", "sequence", "hierarchy"))
                + ([] if quick else _mixed(("hierarchy",))[:1]),
                **_saved_script(prompts),
            },
            "profiles": {"grid": list(_profiles(quick)), "prompt": prompts[0]},
            "scarcity": {"setups": _setups(("hierarchy",))[: 0 if quick else 2], "prompt": prompts[0]},
            "plans": {"chains": list(chains_of(quick))},
            "commands": {"session": "llama-off.chat", "calls": list(calls_of(prompts[0], quick))},
        }
    }


def _setups(modes: Sequence[str], *, more: dict[str, Any] | None = None, every: int = 1) -> list[dict[str, Any]]:
    """Both engines alone."""
    return [{"name": name, "load": load | (more or {}), "modes": modes, "every": every} for name, load in _ENGINES]


def _mixed(modes: Sequence[str], every: int = 1) -> list[dict[str, Any]]:
    """Target, drafter and intermediate model on different engines."""
    roles = ("engine", "draft_engine", "middle_engine")
    mixtures = ("llama+onnx+onnx", "onnx+llama+llama", "llama+llama+onnx", "onnx+llama+onnx")
    loads = {name: {"n_threads": 1, **dict(zip(roles, name.split("+"), strict=True))} for name in mixtures}
    return [{"name": name, "load": load, "modes": modes, "every": every} for name, load in loads.items()]


def _reply_setups(quick: bool) -> list[dict[str, Any]]:
    if quick:
        return [*_setups(_MODES, every=11), *_mixed(("hierarchy",), every=17)[:2]]
    long_drafts, drafting = {"draft_limit": 11}, ("ngram", "sequence", "tree", "hierarchy")
    return [
        *_setups(_MODES, every=3),
        *_mixed(("sequence", "tree", "hierarchy"), every=9),
        *({**each, "name": f"{each['name']} long drafts"} for each in _setups(drafting, more=long_drafts, every=9)),
        *({**each, "name": f"{each['name']} small context"} for each in _setups(_MODES, more={"n_ctx": 64}, every=9)),
        {"name": "own drafter", "load": _ONNX, "modes": ("repeat",), "every": 5},
        {"name": "llama two threads", "load": {"engine": "llama", "n_threads": 2}, "modes": ("sequence",), "every": 23},
    ]


def _structured_setups(quick: bool) -> list[dict[str, Any]]:
    modes = ("off", "sequence") if quick else _MODES
    return _setups(modes, more={"n_ctx": 512}, every=4 if quick else 2)


def _reply_cases(prompts: Sequence[str]) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []

    def add(name: str, **arguments: Any) -> None:
        cases.append({"name": name, "max_tokens": 48, "seed": len(cases), **arguments})

    for (number, prompt), temperature in product(enumerate(prompts), (0.0, 0.8)):
        add(f"prompt {number} at {temperature}", prompt=prompt, temperature=temperature)
        add(f"prompt {number} at {temperature}, raw", prompt=prompt, temperature=temperature, raw=True)
    for number, (name, settings) in enumerate(_SAMPLERS.items()):
        for which in (number, number + 1):
            add(f"{name}, prompt {which % len(prompts)}", prompt=prompts[which % len(prompts)], **settings)
    said = (("system", "You are a pirate."), ("user", "Hi!"), ("assistant", "Ahoy!"), ("user", prompts[0]))
    add("messages", prompt=[{"role": role, "content": text} for role, text in said])
    add("tokens", tokens=[300 + 7 * place for place in range(20)])
    add("large seed", prompt=prompts[0], seed=2**63 + 5)
    # Beyond 256 and 512 used cells kernels may take other ways.
    add("long", prompt=prompts[0], max_tokens=600, ignore_eos=True)
    add("long, greedy", prompt=prompts[0], max_tokens=300, ignore_eos=True, temperature=0.0)
    add("to the end of the context", prompt=" ".join(prompts), max_tokens=None, ignore_eos=True)
    add("too long", prompt=" ".join(prompts) * 40)
    add("refused", prompt=prompts[0], temperature=-1.0)
    return cases


def _structured_cases() -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {"grammar": {"grammar": _GRAMMAR}}
    kinds |= {name: {"json_schema": schema} for name, schema in _SCHEMAS.items()}
    draws = ((1, 0.8), (2, 0.0), (3, 1.2))
    cases = [
        {
            "name": f"{name}, seed {seed}",
            "prompt": f"Tell me about a {name}.",
            "max_tokens": 160,
            "seed": seed,
            "temperature": temperature,
            **kind,
        }
        for (seed, temperature), (name, kind) in product(draws, kinds.items())
    ]
    return [*cases, {"name": "bad grammar", "prompt": "Hi", "grammar": 'root ::= "a'}]


def _chat_script(prompts: Sequence[str]) -> list[tuple[list[Any], dict[str, Any]]]:
    """Steps of two conversations that take turns: arguments and options of ``Conversations.step``."""
    full = {"max_tokens": 70, "ignore_eos": True}
    return [
        (["a", "begin", "You are a friend."], {"seed": 7, "max_tokens": 50}),
        (["a", "send", prompts[0]], {}),
        (["a", "retry"], {}),
        (["a", "send", "Tell me more."], {"max_tokens": 9}),
        (["a", "continue_answer"], {}),
        (["b", "begin", None], {"seed": 8, "temperature": 0.0, "max_tokens": 40}),
        (["b", "send", "Hello!"], {}),
        *((["a", "send", text], full) for text in ("And then?", "Why?", "Where was it?", "Go on.", "Who else?")),
        (["b", "send", "What is your name?"], {}),
        (["a", "edit", "Who said that?"], full),
        (["a", "undo"], {}),
        (["a", "send", "What did he say?"], full),
        (["a", "continue_answer"], full),
        (["a", "retry"], full),
        (["a", "set"], {"repeat_penalty": 1.2, "mirostat": 2, "stop": ["!"]}),
        (["a", "send", "Then?"], full),
        (["a", "cancel", "Sing a song.", 3], full),
        (["a", "continue_answer"], {}),
        (["a", "send", "Thanks."], full),
        (["b", "send", "Tell me a story."], {"max_tokens": 600, "ignore_eos": True}),
        (["b", "retry"], {}),
        (["a", "close"], {}),
        (["a", "send", "Where are you?"], {}),
        (["a", "set_system", "You are a king."], {}),
        (["a", "send", "Who are you?"], full),
        (["a", "clear"], {}),
        (["a", "send", "Hello again."], {}),
        (["a", "undo"], {}),
        (["a", "undo"], {}),
        (["a", "continue_answer"], {}),
        (["a", "send", ""], {}),
    ]


def _saved_script(prompts: Sequence[str]) -> dict[str, Any]:
    options = {"seed": 21, "max_tokens": 40, "mirostat": 2, "repeat_penalty": 1.1, "logit_bias": {}}
    return {
        "before": [
            (["a", "begin", "You are a friend."], options),
            (["a", "send", prompts[0]], {}),
            (["a", "retry"], {}),
            (["a", "send", "Tell me more."], {}),
            (["a", "send", "And then?"], {"max_tokens": 12, "ignore_eos": True}),
        ],
        "after": [(["a", "continue_answer"], {}), (["a", "send", "How does it end?"], {}), (["a", "retry"], {})],
    }


def _profiles(quick: bool) -> Iterable[dict[str, Any]]:
    llama = [{}, {"n_ctx": 300}, {"kv_k": "f16", "kv_v": "f16"}, {"prefill_chunk": 64}, {"repack": False}]
    onnx = [{}, {"n_ctx": 300}, {"kv_k": "f16", "kv_v": "f16"}, {"prefill_chunk": 64}]
    if not quick:
        llama += [
            {"n_ctx": 1024},
            {"kv_k": "q8_0", "kv_v": "q8_0"},
            {"kv_k": "q4_0", "kv_v": "q4_0"},
            {"n_threads": 2},
            {"flash_attention": False},
            {"max_rows": 4},
            {"n_threads_batch": 2},
            {"memory": "132MiB"},
            {"memory": "125MiB"},
            {"kv_k": "f32", "kv_v": "f32", "n_ctx": 600},
            {"least_n_ctx": 500},
            {"kv_k": "nonsense"},
        ]
        onnx += [{"n_ctx": 1024}, {"n_threads": 2}, {"max_rows": 4}, {"memory": "132MiB"}, {"kv_k": "q8_0"}]
    for load, settings in ((_LLAMA, llama), (_ONNX, onnx)):
        for setting, mode in product(settings, ("off",) if quick else ("off", "tree")):
            yield {**load, **setting, "mode": mode}
