"""Laws of the plugin for ``llm``: it writes what ``generate`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import CliRunner
from llm.cli import cli as llm_command

import edge_spec
from edge_spec.model import TextModel

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The demo model, as the user's own file names it."""
    folder = tmp_path_factory.mktemp("llm")
    arguments = {"model": "demo", "engine": "llama", "n_threads": 1, "cache_dir": str(folder / "cache")}
    (folder / "edge-spec.json").write_text(json.dumps({"mine": arguments}), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_USER_PATH", str(folder))
        yield llm.get_model("edge-spec/mine")


@pytest.fixture(scope="module")
def own(probe_cache: Path) -> Iterator[TextModel]:
    """The same model without llm."""
    with edge_spec.load("demo", engine="llama", n_threads=1, cache_dir=probe_cache) as model:
        yield model


def test_families_are_offered() -> None:
    assert "edge-spec/demo" in [model.model_id for model in llm.get_models()]


def test_answers_and_conversations_are_those_of_generate(model: Any, own: TextModel) -> None:
    options = {"seed": 7, "max_tokens": 20, "temperature": 0.5}
    conversation = model.conversation()
    first = conversation.prompt("Tell me a story.", system="Be kind.", **options)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a story."}]
    assert "".join(first) == own.generate(messages, **options).read()
    second = conversation.prompt("And then?", stream=False, **options).text()
    messages += [{"role": "assistant", "content": first.text()}, {"role": "user", "content": "And then?"}]
    assert second == own.generate(messages, **options).read()


def test_its_own_command_line_asks_and_continues(model: Any, own: TextModel) -> None:
    said = ["-o", "seed", "7", "-o", "max_tokens", "12"]
    runner = CliRunner()
    first = runner.invoke(llm_command, ["-m", model.model_id, "-s", "Be kind.", *said, "Tell me a story."])
    second = runner.invoke(llm_command, ["-c", "--no-stream", *said, "And then?"])
    assert (first.exit_code, second.exit_code) == (0, 0), (first.output, second.output)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a story."}]
    texts = []
    for _ in range(2):
        texts.append(own.generate(messages, seed=7, max_tokens=12).read())
        messages += [{"role": "assistant", "content": texts[-1]}, {"role": "user", "content": "And then?"}]
    assert [first.stdout, second.stdout] == [f"{text}\n" for text in texts]
    wrong = runner.invoke(llm_command, ["-m", model.model_id, "-o", "top_p", "3", "Hello"])
    assert wrong.exit_code == 1
    assert "top_p is 3.0 and must be above 0 and at most 1" in wrong.output and "Traceback" not in wrong.output


def test_the_latest_system_message_counts(model: Any, own: TextModel) -> None:
    options = {"seed": 7, "max_tokens": 8}
    conversation = model.conversation()
    first = conversation.prompt("Hello", system="Be kind.", **options).text()
    second = conversation.prompt("Hello", system="Be rude.", **options).text()
    messages = [
        {"role": "system", "content": "Be rude."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Hello"},
    ]
    assert second == own.generate(messages, **options).read()


@pytest.mark.parametrize("text", ["{", "[]", '{"mine": "model.gguf"}', "\xff"])
def test_a_file_with_an_error_is_named_and_the_other_models_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "edge-spec.json"
    path.write_bytes(text.encode("latin-1"))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    names = [model.model_id for model in llm.get_models()]
    assert "edge-spec/demo" in names
    assert "edge-spec/mine" not in names
    assert capsys.readouterr().err.startswith(f"edge-spec: {path} is left out: ")


def test_schemas_hold(model: Any) -> None:
    schema = {"properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["age"]}
    assert 0 <= json.loads(model.prompt("How old?", schema=schema, seed=1).text())["age"] <= 9


def test_a_wrong_option_is_told(model: Any) -> None:
    with pytest.raises(llm.ModelError, match=r"top_p is 3\.0 and must be above 0 and at most 1"):
        model.prompt("Hello", top_p=3.0).text()


FUNCTION = """
def weather(tomorrow: bool) -> str:
    "The weather in this city."
    return "Rain." if tomorrow else "Sunny."
"""


@pytest.fixture
def likes_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model calls a tool where it is shown one, and has no result yet."""
    generate = TextModel.generate

    def eagerly(self: TextModel, prompt: Any, **asked: Any) -> Any:
        if asked.get("tools") and prompt[-1]["role"] != "tool":
            asked |= {"tool_choice": "weather", "parallel_tool_calls": False}
        return generate(self, prompt, **asked)

    monkeypatch.setattr(TextModel, "generate", eagerly)


@pytest.mark.usefixtures("likes_to_call")
@pytest.mark.parametrize("stream", [True, False])
def test_tools_are_called_and_their_results_are_read(model: Any, own: TextModel, stream: bool) -> None:
    names: dict[str, Any] = {}
    exec(FUNCTION, names)
    options = {"seed": 7, "max_tokens": 60}
    chain = model.chain("Weather?", tools=[names["weather"]], stream=stream, options=options)
    text = "".join(chain) if stream else chain.text()
    first, second = chain._responses
    (call,) = first.tool_calls()
    assert (call.name, first.text()) == ("weather", "") and isinstance(call.arguments["tomorrow"], bool)
    tool = llm.Tool.function(names["weather"])
    function = {"name": "weather", "description": "The weather in this city.", "parameters": tool.input_schema}
    asked: dict[str, Any] = {"tools": [{"type": "function", "function": function}], **options}
    reply = own.generate([{"role": "user", "content": "Weather?"}], **asked)
    reply.read()
    assert [(each.id, each.name, each.arguments) for each in reply.tool_calls] == [
        (call.tool_call_id, call.name, call.arguments)
    ]
    results = [each.result(names["weather"](**call.arguments)) for each in reply.tool_calls]
    answer = own.generate([{"role": "user", "content": "Weather?"}, reply.message, *results], **asked)
    assert answer.read() == second.text() == text.strip()


@pytest.mark.usefixtures("likes_to_call")
def test_its_own_command_line_calls_and_continues(model: Any) -> None:
    runner, said = CliRunner(), ["-m", model.model_id, "-o", "seed", "7", "-o", "max_tokens", "60"]
    first = runner.invoke(llm_command, [*said, "--functions", FUNCTION, "--td", "Weather?"])
    assert first.exit_code == 0, first.output
    assert "Tool call: weather" in first.output and ("Rain." in first.output or "Sunny." in first.output)
    # The conversation in the log has the call and its result.
    second = runner.invoke(llm_command, ["-c", "-o", "max_tokens", "8", "And then?"])
    assert second.exit_code == 0, second.output
    assert second.stdout.strip()


def test_thoughts_are_no_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = TextModel.generate

    def thinks(self: TextModel, prompt: Any, **asked: Any) -> Any:
        return generate(self, prompt, **{**asked, "grammar": 'root ::= "<think>\\nWell.</think>\\n\\nYes."'})

    monkeypatch.setattr(TextModel, "generate", thinks)
    response = model.prompt("Is it so?", seed=1)
    assert response.text() == "Yes."
