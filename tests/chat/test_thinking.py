"""Laws of the switch for thoughts: what each chat template is told, and what all ways to ask make of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from family_models import write_family_model
from family_templates import FAMILIES

import edge_spec
from edge_spec import TextModel
from edge_spec.cli.command import main
from edge_spec.errors import SettingsError
from edge_spec.generation.prompts import render_chat
from edge_spec.generation.thinking import template_options_of, think_of

MESSAGES = [{"role": "user", "content": "Weather?"}]
IN_TEXT = "{# thinking enable_thinking #}{{ messages[0].thinking }}thinking reasoning_effort {{ 'enable_thinking' }}"
SWITCHES = {
    "{% if thinking %}<think>{% endif %}": {True: {"thinking": True}, False: {"thinking": False}},
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% if thinking %}<think>{% endif %}": {
        True: {"thinking": True},
        False: {"thinking": False},
    },
    "{{ reasoning_effort | default('medium') }}": {True: {}, "low": {"reasoning_effort": "low"}},
    "{{ reasoning_effort }}{{ enable_thinking }}": {
        True: {"enable_thinking": True},
        False: {"enable_thinking": False},
        "low": {"reasoning_effort": "low", "enable_thinking": True},
    },
    "<think>{{ messages }}": {True: {}},
    IN_TEXT: {False: {}},
    "{{ broken": {False: {}},
}


@pytest.mark.parametrize("template", SWITCHES)
def test_a_template_is_told_what_it_looks_for_and_everything_else_is_refused(template: str) -> None:
    for think in (True, False, "low", "high"):
        told = SWITCHES[template].get("low" if think == "high" else think)
        if told is None:
            with pytest.raises(SettingsError, match="chat template"):
                template_options_of(template, think)
        else:
            expected = {name: think if value == "low" else value for name, value in told.items()}
            assert template_options_of(template, think) == expected
    assert template_options_of(template, None) == template_options_of(None, None) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_of_every_family_on_and_off_are_different_prompts_or_one_is_refused(family: str) -> None:
    template, found = FAMILIES[family], {}
    for think in (True, False):
        try:
            options = template_options_of(template, think)
        except SettingsError:
            continue
        found[think] = render_chat(template, MESSAGES, bos="<s>", eos="</s>", options=options)
    has_switch = template_options_of(template, False) != {} if False in found else False
    assert found, "one of both is always what the model does"
    assert (len({*found.values()}) == 2) == has_switch


def test_words_mean_what_they_say() -> None:
    assert [think_of(each) for each in (None, True, False)] == [None, True, False]
    assert [think_of(each) for each in ("on", " OFF ", "none", "Low", "xhigh")] == [True, False, False, "low", "xhigh"]
    for wrong in ("", "two words", "x" * 40, "{{a}}", 1, 0.5, ["on"]):
        with pytest.raises(SettingsError, match="must be on, off, or a level"):
            think_of(wrong)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family_model(tmp_path_factory.mktemp("thinking") / "model.gguf", "Qwen 3")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[TextModel]:
    with edge_spec.load(path, engine="onnx", speculation="ngram", n_threads=1, cache_dir=path.parent) as model:
        yield model


OFF = {"enable_thinking": False}
ON = {"enable_thinking": True}


@pytest.mark.long
def test_replies_and_conversations_begin_as_the_template_is_told(model: TextModel) -> None:
    for think, options in ((False, OFF), ("off", OFF), (True, ON), (None, {})):
        prompt = tuple(model.prompt_of(MESSAGES, template_options=options))
        assert model.generate("Weather?", think=think, max_tokens=1).prompt == prompt
        assert tuple(model.prompt_of(MESSAGES, think=think)) == prompt
        assert model.chat(think=think).send("Weather?", max_tokens=1).prompt == prompt
        assert model.generate_many(["Weather?"], think=think, max_tokens=1)[0].prompt == prompt
    with pytest.raises(SettingsError, match="knows only on and off"):
        model.generate("Weather?", think="low")
    with pytest.raises(SettingsError, match="needs a chat template"):
        model.generate("Weather?", think=False, raw=True)
    assert tuple(model.prompt_of(MESSAGES, template_options=ON, think=False)) == tuple(
        model.prompt_of(MESSAGES, template_options=ON)
    )


@pytest.mark.long
def test_a_conversation_that_is_switched_goes_on_as_if_it_had_been_asked_so(model: TextModel) -> None:
    """And a switched one that is saved and loaded says the same."""
    session = model.chat("Be brief.", seed=3, max_tokens=12)
    session.send("Weather?").read()
    with pytest.raises(SettingsError, match="think is 'low'"):
        session.set(think="low")
    session.set(think=False)
    reply = session.send("And tomorrow?")
    reply.read()
    said = [message.to_json() for message in session.messages[:-1]]
    again = model.chat(messages=said[:-1], seed=3, max_tokens=12, think=False).send("And tomorrow?")
    assert [reply.prompt, reply.text] == [again.prompt, again.read()]
    end = model.prompts.tokenize("<think>\n\n</think>\n\n", add_special=False)
    assert [*reply.prompt][-len(end) :] == end
    session.set(think=None)
    assert "think" not in session.options


@pytest.fixture
def run(path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def run_it(*arguments: str) -> tuple[str, str]:
        asked = ["run", str(path), "--engine", "onnx", "--threads", "1", "--cache-dir", str(path.parent)]
        with pytest.raises(SystemExit):
            main([*asked, "-p", "Weather?", "--seed", "2", *arguments])
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run_it


GRAMMAR = 'root ::= "<think>Hm.</think>It rains."'


@pytest.mark.long
def test_run_prints_the_answer_apart_from_the_thought(run: Callable[..., tuple[str, str]]) -> None:
    asked = ("--grammar", GRAMMAR, "--think", "on")
    assert run(*asked)[0] == "It rains.\n"
    assert run(*asked, "--thoughts", "show")[0].strip().endswith("Hm.</think>It rains.")
    told: dict[str, Any] = json.loads(run(*asked, "--json")[0])
    assert (told["content"], told["reasoning_content"]) == ("It rains.", "Hm.")
    assert "It rains.\n" in run(*asked, "--answers", "2")[0] and "Hm." not in run(*asked, "--answers", "2")[0]
    out, err = run(*asked, "-n", "8")
    assert (out, "all of the reply is thought" in err and "--thoughts show" in err) == ("\n", True)
    # What is continued as it is has no thoughts.
    assert run("--raw", "--grammar", GRAMMAR)[0] == "<think>Hm.</think>It rains.\n"
    assert "--think is 'low', and this model's chat template knows only on and off" in run("--think", "low")[1]
