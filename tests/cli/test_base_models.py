"""Laws of models that only continue text: it is said before anybody waits, and what marks images is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import write_gguf

from edge_spec.cli import main
from edge_spec.tokens.tokenizer import TokenBytes

NOTE = (
    "edge-spec: note: this model has no chat template: it continues the prompt as a text; "
    "for answers use a chat model, and --raw where a text is wanted\n"
)
REFUSED = "edge-spec: error: this model has no chat template; use a chat model, or edge-spec run with --raw\n"


@pytest.mark.long
@pytest.mark.parametrize(("options", "said"), [((), [NOTE]), (("--raw",), [])])
def test_run_says_that_a_model_continues_text(
    options: tuple[str, ...], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_gguf(tmp_path / "base.gguf")
    with pytest.raises(SystemExit) as left:
        main(["run", str(model), "-p", "Hi", "-n", "2", "--cache-dir", str(tmp_path / "cache"), *options])
    assert not left.value.code
    assert [line for line in capsys.readouterr().err.splitlines(keepends=True) if "template" in line] == said


def test_chat_refuses_a_model_that_continues_text_before_it_loads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_gguf(tmp_path / "base.gguf")
    with pytest.raises(SystemExit) as left:
        main(["chat", str(model), "--cache-dir", str(tmp_path / "cache")])
    assert left.value.code == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", REFUSED)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("<start_of_image>", ""),
        ("<end_of_image>", ""),
        ("<image_soft_token>", ""),
        ("<|vision_start|>", ""),
        ("<|audio_pad|>", ""),
        ("[multimodal]", ""),
        ("<img>", "<img>"),
        ("<audio>", "<audio>"),
        ("</video>", "</video>"),
        ("<think>", "<think>"),
        ("<tool_call>", "<tool_call>"),
        ("<table>", "<table>"),
        ("start_of_image", "start_of_image"),
        (" [image]", " [image]"),
    ],
)
def test_marks_of_images_and_sounds_are_no_text_and_tags_are(name: str, text: str) -> None:
    assert TokenBytes().of(7, lambda token: name.encode()) == text.encode()
