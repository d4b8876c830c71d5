"""Laws of options: a list of keywords and the checked value beside it agree, and help shows what they say."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from string import Formatter
from typing import Any, get_type_hints

import pytest
from import_graph import modules_of

from edge_spec import TextModel
from edge_spec.controller.options import LOAD_OPTIONS, LoadKeywords, LoadOptions
from edge_spec.engines.registry import engines, settings_of
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import SettingsError
from edge_spec.generation.options import ANSWER_OPTIONS, REPLY_OPTIONS, AnswerKeywords, ReplyKeywords, ReplyOptions
from edge_spec.loading import aload, load, plan
from edge_spec.models import inspect as inspect_file
from edge_spec.models import resolve_family
from edge_spec.options import Option
from edge_spec.sampling import SAMPLER_OPTIONS, SamplerKeywords

ROOT = Path(__file__).parent.parent.parent
LISTS = [
    (LOAD_OPTIONS, LoadKeywords),
    (REPLY_OPTIONS, ReplyKeywords),
    (ANSWER_OPTIONS, AnswerKeywords),
    (SAMPLER_OPTIONS, SamplerKeywords),
]


@pytest.mark.parametrize(("options", "keywords"), LISTS, ids=["load", "reply", "answer", "sampler"])
def test_every_keyword_is_an_option_with_a_text(options: Mapping[str, Option], keywords: type) -> None:
    assert get_type_hints(keywords) == {name: option.hint for name, option in options.items()}
    assert not keywords.__required_keys__  # type: ignore[attr-defined]
    assert all(option.name == name and option.help.endswith(".") for name, option in options.items())
    fields_told = [each.field for each in options.values() if each.field is not None]
    assert len(set(fields_told)) == len(fields_told)


def test_keywords_and_checked_options_of_a_reply_are_one_list() -> None:
    checked = {each.name: get_type_hints(ReplyOptions)[each.name] for each in fields(ReplyOptions)}
    own = {name: option.hint for name, option in REPLY_OPTIONS.items() if name not in SAMPLER_OPTIONS}
    assert checked.keys() == own.keys() | {"sampling"}
    # However stop strings are given, they are kept as several.
    assert {name for name in own if own[name] != checked[name]} == {"stop"}
    defaults = ReplyOptions()
    assert {name: REPLY_OPTIONS[name].default for name in own} == {name: getattr(defaults, name) for name in own}


def test_keywords_and_checked_options_of_loading_are_one_list() -> None:
    checked = {name: hint for name, hint in get_type_hints(LoadOptions).items() if name not in ("model", "settings")}
    # What a plan chooses nobody gives.
    others = ("n_ctx", "extras", "held_experts")
    common = {name: hint for name, hint in get_type_hints(ModelSettings).items() if name not in others}
    extras = frozenset[str]().union(*(engine.extras for engine in engines()))
    own = {name: option.hint for name, option in LOAD_OPTIONS.items()}
    assert own == {**checked, **common, **dict.fromkeys(extras, bool)}
    file = inspect_file(resolve_family("demo").target)
    for engine in engines():
        given = {name: LOAD_OPTIONS[name].default for name in engine.extras}
        assert engine.resolve(file, settings_of(64, given)) == engine.resolve(file, settings_of(64, {}))


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (TextModel.generate, REPLY_OPTIONS),
        (TextModel.generate_many, REPLY_OPTIONS),
        (load, LOAD_OPTIONS),
        (aload, LOAD_OPTIONS),
        (plan, LOAD_OPTIONS),
    ],
)
def test_help_shows_every_option_with_default_and_text(function: Any, options: Mapping[str, Option]) -> None:
    shown = inspect.signature(function).parameters
    text = " ".join((inspect.getdoc(function) or "").split())
    for name, option in options.items():
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == option.default
        assert f" {name}: {option.help}" in text
        assert option.shown in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_tokens": 0}, "max_tokens is 0 and must be at least 1"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5 and must be a whole number of at least 1"),
        ({"logprobs": 1001}, "logprobs is 1001 and must be from 0 to 1000"),
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes' and must be True or False"),
        ({"raw": None}, "raw is None and must be True or False"),
        ({"seed": 1 << 64}, f"seed is {1 << 64} and must be from -2**63 to 2**64 - 1; leave it out for a random one"),
        ({"timeout": 0}, "timeout is 0 and must be a number of seconds above 0; leave it out for no limit"),
        (
            {"timeout": 10**5000},
            "timeout is a number of very many digits and must be a number of seconds above 0; "
            "leave it out for no limit",
        ),
        ({"max_tokens": -(10**5000)}, "max_tokens is a number of very many digits and must be at least 1"),
        ({"stop": ["a", ""]}, "stop must be texts that are not empty; give texts of at least one character"),
        ({"top_k": -1}, "top_k is -1 and must be at least 0"),
        ({"max_token": 3}, "unknown setting max_token; did you mean max_tokens?"),
    ],
)
def test_what_cannot_be_asked_of_any_model_is_refused_with_its_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ReplyOptions.of(given)
    assert str(caught.value) == said
    assert caught.value.argument == ("" if "unknown" in said else next(iter(given)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "banana"}, "memory is 'banana', which is not a valid size; write 2GiB, 512MiB or 1.5g"),
        (
            {"n_ctx": 1},
            "n_ctx is 1 and must be a whole number of at least 2; leave it out for what the model and the memory allow",
        ),
        ({"n_ctx": 9, "min_n_ctx": 9}, "`n_ctx` and `min_n_ctx` both set the size of the context; give one of them"),
        ({"draft": 5}, "draft is 5 and must be a name or a path"),
        ({"texts": 0}, "texts is 0 and must be a whole number from 1 to 1,048,576"),
        ({"draft_limit": 16}, "draft_limit is 16 and must be a whole number from 1 to 15"),
        ({"n_threads": -1}, "n_threads is -1 and must be a whole number from 0 to 512"),
        ({"n_treads": 1}, "unknown setting n_treads; did you mean n_threads or n_threads_batch?"),
    ],
)
def test_what_cannot_be_loaded_whatever_the_file_is_refused_with_its_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        LoadOptions.of("demo", given)
    assert str(caught.value) == said


SOURCES = [path for path in modules_of(ROOT).values() if path.parts[-2] != "cli"]
METHODS = ("cancel()", "close()", "generate()", "retry()", "tokenize()")
OTHERS = {"n", "first", "prompt", "tokens", "requantize", "host", "port", "api_key", "insecure"}
"""Arguments of single functions, which messages name."""


@pytest.mark.long
def test_sentences_name_only_arguments_that_there_are() -> None:
    known = {*LOAD_OPTIONS, *REPLY_OPTIONS, *METHODS, *OTHERS}
    named = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sentence":
                own = {each.arg for each in node.keywords}
                if isinstance(node.args[0], ast.Constant):
                    template = str(node.args[0].value)
                    named |= {name for _, name, _, _ in Formatter().parse(template) if name is not None} - own
    assert len(named) > 10
    assert named <= known, named - known


@pytest.mark.long
def test_arguments_in_messages_are_data() -> None:
    """A text with an argument in backticks could only be shown as in Python; texts about options are shown so."""
    names = {*LOAD_OPTIONS, *REPLY_OPTIONS, *OTHERS}
    for path in SOURCES:
        if path.name == "options.py":
            continue
        tree = ast.parse(path.read_text("utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                marked = re.findall(r"`([a-z_]+)(?:=[^`]*)?`", node.value)
                assert not names.intersection(marked), (path, node.value)
