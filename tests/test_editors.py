"""Laws of what editors know of the options, asked of pyright's language server; see also ``test_checkers.py``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from language_server import language_server

from edge_spec.controller.options import LoadKeywords
from edge_spec.generation.options import AnswerKeywords, ReplyKeywords

pytest.importorskip("basedpyright")

ROOT = Path(__file__).parent.parent
IN_PACKAGE = ("cli", "memory", "models")

BEGINNING = """from edge_spec import ChatSession, TextModel, aload, load
def ask(model: TextModel, session: ChatSession, prompts: list[str]) -> None:
    """

CALLS = {
    "load(": LoadKeywords,
    "aload(": LoadKeywords,
    'model.generate("Hi", ': ReplyKeywords,
    "model.generate_many(prompts, ": ReplyKeywords,
    'session.send("Hi", ': AnswerKeywords,
    "model.chat(": AnswerKeywords,
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pyright finds the package, which it does not through an editable install."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("edge_spec", *IN_PACKAGE):
        target = folder / "edge_spec" / (name if name in IN_PACKAGE else "")
        shutil.copytree(ROOT / name, target, ignore=_other_than_python, dirs_exist_ok=True)
    config = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return folder


def _other_than_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir())]


def test_editors_complete_every_option(workspace: Path) -> None:
    server = shutil.which("basedpyright-langserver", path=str(Path(sys.executable).parent))
    assert server is not None
    with language_server([server, "--stdio"], workspace, {"pythonPath": sys.executable}) as asked:
        for number, (call, keywords) in enumerate(CALLS.items()):
            offered = asked.completions(workspace / f"call_{number}.py", BEGINNING + call)
            wanted = {f"{name}=" for name in get_type_hints(keywords)}
            assert wanted <= offered, (call, wanted - offered)
        begun = BEGINNING + 'model.generate("Hi", n=4, json_s'
        assert "json_schema=" in asked.completions(workspace / "begun.py", begun)
