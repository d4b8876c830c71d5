"""Laws of ``edge-spec drafter make``: from texts to a drafter that is found by itself, also after interruptions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import edge_spec  # noqa: E402
from edge_spec.cli import main  # noqa: E402
from edge_spec.engines.onnx.kernels import available  # noqa: E402
from edge_spec.engines.registry import engines  # noqa: E402
from edge_spec.errors import DiskFull, SettingsError  # noqa: E402
from edge_spec.models import inspect, made_drafter, resolve_family  # noqa: E402
from edge_spec.training.clock import Clock, TimeIsUp  # noqa: E402
from edge_spec.training.drafter.heads import target_layers  # noqa: E402
from edge_spec.training.drafter.hidden import StoredRows  # noqa: E402
from edge_spec.training.drafter.make import DrafterMaker  # noqa: E402
from edge_spec.training.drafter.measure import CHAIN, TREE  # noqa: E402
from edge_spec.training.drafter.opened import opened_with_hidden_rows  # noqa: E402
from edge_spec.training.drafter.portions import portions_in  # noqa: E402
from edge_spec.training.drafter.settings import MakeSettings  # noqa: E402
from edge_spec.training.drafter.verdict import pays, verdict_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = MakeSettings(
    tokens=700,
    vocabulary=2048,
    layers=1,
    width=64,
    passes=8,
    answer_tokens=24,
    row=128,
    short_row=64,
    step_tokens=512,
    held_out=2,
    learning_rate=1e-2,
)
QUESTIONS = ("Tell me a story about a dog.", "Hello, how are you today?", "What is a lantern?", "Tell me a story.")


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    turns = [[{"role": "user", "text": text}] for text in QUESTIONS]
    (folder / "a.jsonl").write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns), "utf-8")
    return folder


def maker(folder: Path, cache: Path, **values: Any) -> DrafterMaker:
    texts = folder / "texts"
    return DrafterMaker(
        target=inspect(resolve_family("demo").target),
        texts=texts if texts.is_dir() else write_texts(texts),
        out=values.pop("out", folder / "out"),
        settings=values.pop("settings", TINY),
        on=engines()[0 if available() is None else -1],
        device="cpu",
        clock=values.pop("clock", Clock()),
        cache_dir=cache,
        say=values.pop("say", lambda line: None),
        head=values.pop("head", None),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> SimpleNamespace:
    """Everything that a tiny run leaves."""
    folder = tmp_path_factory.mktemp("made")
    lines: list[str] = []
    whole = maker(folder, probe_cache, say=lines.append)
    return SimpleNamespace(maker=whole, results=whole.run(), lines=lines, folder=folder)


def ticking(steps: int) -> Callable[[], float]:
    """A time that is up after it was asked for so often."""
    asked = iter(range(1 << 30))
    return lambda: float(next(asked) >= steps)


def test_the_drafter_has_learned(made: SimpleNamespace) -> None:
    log = [json.loads(line) for line in (made.maker.out / "training" / "log.jsonl").read_text("utf-8").splitlines()]
    assert log[-1]["loss"] < log[0]["loss"]
    assert made.results["measured"]["greedy"]["tokens"] > 0
    assert made.results["data"]["coverage"] > 0.9
    assert any("min left" in line for line in made.lines)


def test_the_card_and_the_file_say_what_it_is(made: SimpleNamespace) -> None:
    card = (made.maker.out / "README.md").read_text("utf-8")
    assert made.maker.target.fingerprint in card
    assert "| greedy |" in card
    assert "tokens per round, tree of 8" in card
    assert verdict_of(made.results["measured"]) in card
    draft = inspect(made.maker.out / "drafter.gguf")
    assert draft.trimmed is not None
    assert draft.trimmed.teacher == made.maker.target.fingerprint
    assert (draft.n_vocab, draft.quantization) == (2048, "Q4_0")


def test_what_is_measured_says_whether_it_pays(made: SimpleNamespace) -> None:
    """Acceptance of forced drafts, what a draft step takes, and every mode beside n-grams and plain decoding."""
    for found in made.results["measured"].values():
        assert [speed["mode"] for speed in found["speeds"]] == ["off", "ngram", "sequence", "tree", "auto"]
        assert all(speed["same_text"] for speed in found["speeds"])
        assert 1 <= found["tokens_per_round"][CHAIN] <= 5
        assert 1 <= found["tokens_per_round"][TREE] <= 5
        assert 0 < found["step"] < 2
        low, high = found["gain"]["interval"]
        assert 0 < low <= found["gain"]["ratio"] <= high
    assert made.results["pays"] == pays(made.results["measured"])


@pytest.mark.slow
def test_a_drafter_that_was_not_installed_is_taught_more_of_what_is_there(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    """As the command says: without what was made of the answers."""
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "out"
    for name in ("prepared", "training"):
        shutil.rmtree(out / name)
    for name in ("drafter.gguf", "results.json"):
        (out / name).unlink()
    kept = {path.name: path.read_bytes() for path in (out / "answers").iterdir()}
    results = maker(tmp_path, probe_cache, settings=replace(TINY, tokens=4 * TINY.tokens)).run()
    assert results["data"]["answer_tokens"] >= 4 * TINY.tokens
    assert kept.items() <= {path.name: path.read_bytes() for path in (out / "answers").iterdir()}.items()


def test_an_interrupted_run_continues_to_the_same_drafter(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    shutil.copytree(made.folder / "texts", tmp_path / "texts")
    n_stopped = 0
    for steps in (4, 10, 14, 20, 24, 1 << 30):
        try:
            maker(tmp_path, probe_cache, clock=Clock(1.0, now=ticking(steps))).run()
        except TimeIsUp:
            n_stopped += 1
    assert n_stopped > 2
    whole, resumed = ((folder / "out" / "drafter.gguf").read_bytes() for folder in (made.folder, tmp_path))
    assert resumed == whole
    assert maker(tmp_path, probe_cache).run()["measured"]["greedy"]["tokens"] > 0


def test_load_finds_the_installed_drafter_and_writes_the_same_text(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / name)
    target = resolve_family("demo").target
    assert made_drafter(inspect(target)) is None
    folder = made.maker.install()
    assert made_drafter(inspect(target)) == folder / "drafter.gguf"
    assert (folder / "README.md").is_file()
    found = {}
    for mode in ("off", "sequence", "auto"):
        with edge_spec.load(target, speculation=mode, n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
            assert model.info.files.get("draft") == (folder / "drafter.gguf" if mode != "off" else None)
            reply = model.generate("Tell me a story.", seed=3, max_tokens=40)
            reply.read()
            found[mode] = (reply.token_ids, reply.statistics.drafted)
    assert found["sequence"][0] == found["off"][0] == found["auto"][0]
    assert found["sequence"][1] > 0


def test_other_settings_need_another_folder(made: SimpleNamespace, probe_cache: Path) -> None:
    with pytest.raises(SettingsError, match="begun with another seed and another width"):
        maker(made.folder, probe_cache, settings=MakeSettings(**{**TINY.as_json(), "seed": 2, "width": 96}))


def test_what_is_asked_and_learned_can_change_until_the_vocabulary_is_chosen(tmp_path: Path, probe_cache: Path) -> None:
    write_texts(tmp_path / "texts")
    maker(tmp_path, probe_cache)
    larger = MakeSettings(**{**TINY.as_json(), "tokens": TINY.tokens * 2, "width": 96})
    assert maker(tmp_path, probe_cache, settings=larger).settings == larger
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["tokens"] == larger.tokens
    with pytest.raises(SettingsError, match="begun with another answer_tokens"):
        maker(tmp_path, probe_cache, settings=MakeSettings(**{**TINY.as_json(), "answer_tokens": 9}))
    (tmp_path / "out" / "prepared").mkdir()
    (tmp_path / "out" / "prepared" / "prepared.json").write_text("{}")
    with pytest.raises(SettingsError, match="begun with another tokens and another width"):
        maker(tmp_path, probe_cache)


def test_nothing_of_the_target_is_in_a_drafter_that_does_not_inherit(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    start = json.loads((made.maker.out / "training" / "start.json").read_text())
    assert start == {"inherited": True}
    out = tmp_path / "out"
    shutil.copytree(made.maker.out / "answers", out / "answers")
    for name in ("settings.json", "prompts.json"):
        shutil.copy(made.maker.out / name, out / name)
    maker(tmp_path, probe_cache, settings=replace(TINY, inherit=False)).run()
    assert json.loads((out / "training" / "start.json").read_text()) == {"inherited": False}
    assert "began with random weights" in (out / "README.md").read_text()


def test_a_disk_that_fills_up_loses_nothing(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **values: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.open_memmap", full)
    out = tmp_path / "out"
    for name in ("answers", "settings.json", "prompts.json"):
        copy = shutil.copytree if (made.maker.out / name).is_dir() else shutil.copy
        out.mkdir(exist_ok=True)
        copy(made.maker.out / name, out / name)
    write_texts(tmp_path / "texts")
    with pytest.raises(DiskFull, match="disk space") as caught:
        maker(tmp_path, probe_cache).run()
    assert "run the same command again" in caught.value.hint
    assert len(list((out / "answers").glob("*.npz"))) == len(list((made.maker.out / "answers").glob("*.npz")))


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
@pytest.mark.parametrize("again", [True, False])
def test_a_head_is_made_of_answers_that_are_there_or_of_its_own(
    again: bool, made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    """Also where the target is stopped while it reads them again, or writes them with their hidden states."""
    write_texts(tmp_path / "texts")
    out = tmp_path / "out"
    if again:
        shutil.copytree(made.maker.out / "answers", out / "answers")
        for name in ("settings.json", "prompts.json"):
            shutil.copy(made.maker.out / name, out / name)
    settings = replace(TINY, kind="head", head_row=128, passes=1, answer_tokens=24)
    stopped, lines = [], []
    for steps in (8, 20, 1 << 30):
        try:
            results = maker(
                tmp_path, probe_cache, settings=settings, clock=Clock(1.0, now=ticking(steps)), say=lines.append
            ).run()
        except TimeIsUp as note:
            stopped.append(str(note))
    assert stopped
    assert any("tokens again" in note for note in stopped) == again
    assert any(line.startswith("hidden states: ") and "min left" in line for line in lines) == again
    target, draft = made.maker.target, inspect(out / "drafter.gguf")
    begins = np.load(out / "prepared" / "begins.npy")
    hidden = StoredRows(out / "answers", int(begins[-1]))
    texts = [text for portion in portions_in(out / "answers") for text in np.split(portion.tokens, begins[1:-1])]
    with opened_with_hidden_rows(target, made.maker.on, 256, target_layers(target), cache_dir=probe_cache) as (
        model,
        _,
        rows,
    ):
        for number, text in enumerate(texts[:-1:9]):
            model.rollback(0)
            model.prefill(text.tolist())
            begin = begins[9 * number]
            read = rows[0 : len(text) - 1].astype(np.float32)
            apart = np.abs(hidden[np.arange(begin, begin + len(text) - 1)] - read)
            assert apart.max() <= (0 if again else 0.2) * read.std()
    assert begins[-1] == sum(map(len, texts))
    assert draft.architecture == "eagle3"
    assert draft.trimmed is not None
    assert draft.trimmed.teacher == target.fingerprint
    assert results["measured"]["greedy"]["tokens"] == made.results["measured"]["greedy"]["tokens"]
    assert "EAGLE-3" in (out / "README.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_a_head_learns_on_from_answers_of_another_folder(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    """Also where that was interrupted, and never from another head than it began with."""
    settings = replace(TINY, kind="head", head_row=128, passes=1, answer_tokens=24)
    write_texts(tmp_path / "texts")
    maker(tmp_path, probe_cache, settings=settings).run()
    head = inspect(tmp_path / "out" / "drafter.gguf")
    asked = replace(settings, seed=2, vocabulary=1024)
    found, stopped = [], []
    for name, stops in (("whole", (1 << 30,)), ("cut", (24, 1 << 30))):
        out = tmp_path / name
        for steps in stops:
            again = maker(
                tmp_path, probe_cache, out=out, settings=asked, head=head, clock=Clock(1.0, now=ticking(steps))
            )
            try:
                again.run()
            except TimeIsUp as note:
                stopped.append(str(note))
        found.append((out / "drafter.gguf").read_bytes())
    assert [note.split()[0] for note in stopped] == ["training"], stopped
    assert found[0] == found[1] != head.path.read_bytes()
    more = inspect(out / "drafter.gguf")
    assert more.trimmed is not None
    assert head.trimmed is not None
    assert list(more.trimmed.ids.decode()) == list(head.trimmed.ids.decode())
    assert f"It began with the weights of the head `{head.fingerprint}`" in (out / "README.md").read_text("utf-8")
    with pytest.raises(SettingsError, match="begun with another head"):
        maker(tmp_path, probe_cache, out=out, settings=asked)


@pytest.mark.slow
def test_answers_of_others_are_read_where_an_interrupted_run_stopped(
    made: SimpleNamespace, tmp_path: Path, probe_cache: Path
) -> None:
    found = []
    for stops in ((1 << 30,), (1, 2, 3, 1 << 30)):
        folder = tmp_path / str(len(stops))
        out = folder / "out"
        shutil.copytree(made.maker.out / "answers", out / "answers")
        shutil.copy(made.maker.out / "prompts.json", out)
        texts = write_texts(folder / "texts")
        pairs = [(f"What is the number {number}?", f"It is the number {number}, of course.") for number in range(200)]
        turns = [[{"role": "user", "text": asked}, {"role": "assistant", "text": answer}] for asked, answer in pairs]
        (texts / "b.jsonl").write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns), "utf-8")
        notes = []
        for steps in stops:
            try:
                run = maker(
                    folder,
                    probe_cache,
                    settings=replace(TINY, read_answers=1500, passes=1),
                    clock=Clock(1.0, now=ticking(steps)),
                )
                results = run.run()
            except TimeIsUp as note:
                notes.append(str(note))
        assert any("answers by others" in note for note in notes) == (len(stops) > 1)
        assert results["data"]["answer_tokens"] == made.results["data"]["answer_tokens"]
        assert results["data"]["read_tokens"] >= 1500
        assert "that others wrote" in (out / "README.md").read_text("utf-8")
        found.append([path.read_bytes() for path in sorted((out / "answers").glob("read-*.npz"))])
    assert len(found[0]) > 1
    assert found[0] == found[1]


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["drafter", "make", "demo", "--texts", str(tmp_path), "--out", str(tmp_path / "out"), *arguments])
        assert ended.value.code in (1, 2)
        return capsys.readouterr().err

    assert "holds no text" in said()
    assert "--width is 100" in said("--width", "100")
    assert "hidden states" in said("--kind", "head", "--engine", "llama")
    assert "--continue is for heads; add --kind head" in said("--continue", "head.gguf")
    draft = str(resolve_family("demo").draft)
    write_texts(tmp_path / "texts")
    assert "drafter-q4_0.gguf is no head for target-q4_0.gguf" in said("--kind", "head", "--continue", draft)
    assert "write 90s, 30m or 2h" in said("--time-limit", "soon")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert said() == 'edge-spec: error: PyTorch is not installed; run: pip install "torch>=2.6" "tokenizers>=0.21"\n'
