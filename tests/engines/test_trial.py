"""Laws of the trial of strange files: what a file does is remembered with all it depends on, what others do is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from gguf_files import write_gguf
from hostile_gguf import read_gguf
from position_tables import write_gpt2
from published_models import publish
from published_weights import read_weights

from edge_spec.engines import trial
from edge_spec.engines.base import installed
from edge_spec.engines.registry import able
from edge_spec.engines.trial import require_sound
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import ModelFile, inspect, resolve_family

pytestmark = pytest.mark.long

KILLED = "import os, signal; os.kill(os.getpid(), signal.{})"
STANDING = "import time; time.sleep(60)"
BUSY = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 60))\nwhile True: pass"
BROKEN = "raise SystemExit(1)"


def judged(file: ModelFile, cache_dir: Path | None) -> None:
    # As another process would find it.
    trial._tried_here.cache_clear()
    with require_sound([(file, able(file))], cache_dir=cache_dir):
        pass


class Others:
    """Starts other children than those that read files, as long as there are any."""

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self.n_begun = 0
        self._begin = trial._begun

    def __call__(self, files: list[trial._Tried]) -> subprocess.Popen[bytes] | None:
        self.n_begun += 1
        if not self.scripts:
            return self._begin(files)
        command = [sys.executable, "-c", self.scripts.pop(0)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    found = Others()
    monkeypatch.setattr(trial, "_begun", found)
    yield found
    trial._tried_here.cache_clear()


@pytest.fixture(scope="module")
def sound() -> ModelFile:
    return inspect(resolve_family("demo").draft)


@pytest.mark.parametrize("base", ["llama", "qwen2"])
def test_a_file_under_the_name_of_another_architecture_is_refused(base: str, tmp_path: Path, others: Others) -> None:
    write_gguf(tmp_path / "base.gguf", architecture=base, biases=base == "qwen2")
    model = read_gguf(tmp_path / "base.gguf")
    renamed = {key.replace(f"{base}.", "paddleocr.", 1): value for key, value in model.values.items()}
    model.values = renamed | {"general.architecture": (8, "paddleocr")}
    file = inspect(model.write(tmp_path / "renamed.gguf"))
    with pytest.raises(UnsupportedModel):
        judged(file, tmp_path / "cache")
        LlamaWeights(file.path).close()


def test_what_ends_a_process_only_when_it_computes_is_refused(tmp_path: Path, others: Others) -> None:
    """llama.cpp loads a table of 8 positions and plans every operation; its operator ends the process at the ninth."""
    files = {n: inspect(write_gpt2(tmp_path / f"{n}.gguf", n)) for n in (8, 512)}
    with closing(LlamaWeights(files[8].path)) as weights:
        weights.try_context(256, decodes=False)
    judged(files[512], tmp_path / "cache")
    with pytest.raises(UnsupportedModel, match=r"8\.gguf ends a process that reads it \(SIGABRT\)"):
        judged(files[8], tmp_path / "cache")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_file_whose_child_is_ended_from_outside_is_tried_again(
    name: str, sound: ModelFile, tmp_path: Path, others: Others
) -> None:
    others.scripts = [KILLED.format(name)]
    judged(sound, tmp_path)
    others.scripts = ["print()"]
    judged(sound, tmp_path)
    assert others.n_begun == 2


@pytest.mark.parametrize("is_published", [False, True])
def test_only_a_published_model_is_tried_again_with_other_tokenizers(
    is_published: bool, sound: ModelFile, tmp_path: Path, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sound
    if is_published:
        publish(tmp_path / "published", read_weights(sound.path), "plain")
        file = inspect(tmp_path / "published")
    judged(file, tmp_path)
    monkeypatch.setattr(trial, "installed", lambda package: "99" if package == "tokenizers" else installed(package))
    judged(file, tmp_path)
    assert others.n_begun == 1 + is_published


def test_what_others_did_is_not_remembered(
    sound: ModelFile, tmp_path: Path, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(trial, "_PATIENCE_S", 2.0)
        for script, said in ((KILLED.format("SIGKILL"), r"outside \(SIGKILL\)"), (STANDING, "not done after 2 s")):
            others.scripts = [script] * 2
            with pytest.raises(BackendError, match=rf"could not be tried: .*{said}; run it again"):
                judged(sound, tmp_path)
    others.scripts = [BROKEN]
    judged(sound, tmp_path)
    assert not list((tmp_path / "probes").glob("tried-*"))
    judged(sound, tmp_path)
    assert list((tmp_path / "probes").glob("tried-*"))


def test_what_was_not_tried_is_not_remembered(
    sound: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "frozen", True, raising=False)  # such a program starts no child
        judged(sound, tmp_path)
    assert not list((tmp_path / "probes").glob("tried-*"))
    judged(sound, tmp_path)
    assert list((tmp_path / "probes").glob("tried-*"))


def test_time_of_the_processor_is_the_files_doing(sound: ModelFile, tmp_path: Path, others: Others) -> None:
    others.scripts = [BUSY]
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="takes more than 20 s of the processor to read") as refused:
            judged(sound, tmp_path)
    assert others.n_begun == 1
    (record,) = (tmp_path / "probes").glob("tried-*")
    assert f"remove {record} to try it again" in str(refused.value)
    record.unlink()
    judged(sound, tmp_path)


def test_a_tokenizer_in_the_place_of_another_one_is_tried_anew(tmp_path: Path, others: Others) -> None:
    folder = tmp_path / "model"
    publish(folder, read_weights(resolve_family("demo").draft), "plain")
    path = folder / "tokenizer.json"
    good = path.read_text("utf-8")
    bad = json.dumps({**json.loads(good), "decoder": {"type": "CTC"}})
    for text, is_sound in ((good, True), (bad, False), (good, True), (bad, False)):
        path.write_text(text, "utf-8")
        if is_sound:
            judged(inspect(folder), tmp_path / "cache")
        else:
            with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be used"):
                judged(inspect(folder), tmp_path / "cache")
    assert others.n_begun == 2
