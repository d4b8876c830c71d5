"""Laws of the training command: settings, options, and where it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from few_libraries import run_with_few_libraries

from edge_spec.errors import ModelFileError, SettingsError
from edge_spec.training.clock import Clock
from edge_spec.training.command import main
from edge_spec.training.settings import ROLES, SETTINGS, Shape, Training, setting_of
from edge_spec.training.sources import sources_of
from edge_spec.training.stages import Recipe

ROOT = Path(__file__).parents[2]


def test_settings_keep_the_family_in_its_proportions() -> None:
    def in_layers(shape: Shape) -> int:
        return shape.n_params - shape.n_vocab * shape.n_embd

    for name, setting in SETTINGS.items():
        target, intermediate, draft = (setting.shapes[role] for role in ROLES)
        if name != "small":
            assert target.n_params > 4.5 * intermediate.n_params
            # Most of a drafter is its embedding, and one that is too narrow guesses badly.
            assert in_layers(intermediate) > 4.5 * in_layers(draft)
            assert intermediate.n_params > 1.5 * draft.n_params
        assert draft.n_layers <= intermediate.n_layers <= target.n_layers
        assert all(shape.n_ctx >= setting.row and shape.n_vocab == setting.n_vocab for shape in setting.shapes.values())
    gpu = SETTINGS["gpu"]
    assert 50e6 < gpu.shapes["target"].n_params < 75e6
    # Layers at 4.5 bits, embeddings at 8.5, and the vocabulary three times.
    embeddings = sum(shape.n_vocab * shape.n_embd for shape in gpu.shapes.values())
    layers = sum(shape.n_params for shape in gpu.shapes.values()) - embeddings
    assert layers * 4.5 / 8 + embeddings * 8.5 / 8 + 3 * 300_000 < 45e6


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Shape(n_layers=1, n_embd=100, n_head=2, n_head_kv=1, n_ff=64, n_vocab=64, n_ctx=32),
        lambda: Shape(n_layers=1, n_embd=96, n_head=4, n_head_kv=1, n_ff=64, n_vocab=64, n_ctx=32),
        lambda: Training(tokens=10, step_tokens=64, micro_tokens=64, learning_rate=1e-3),
        lambda: setting_of("huge"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(wrong: object) -> None:
    with pytest.raises(SettingsError):
        wrong()  # type: ignore[operator]


def test_sources_that_are_not_known_do_not_get_a_license() -> None:
    known, unknown = sources_of(["gsm8k-train", "somewhere"])
    assert (known.license, unknown.license) == ("MIT", "not stated")


def test_clocks_are_over_when_their_time_is() -> None:
    now = iter([5.0, 6.0, 15.0])
    clock = Clock(10, now=lambda: next(now))
    assert [clock.over, clock.over] == [False, True]
    assert not Clock().over


def test_training_is_imported_where_nothing_but_pytorch_and_numpy_is_installed() -> None:
    code = """
import pkgutil
from importlib import import_module
import edge_spec.training

for module in pkgutil.iter_modules(edge_spec.training.__path__, "edge_spec.training."):
    try:
        import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name != "torch":  # which the tests do without
            raise
for library in ("click", "tokenizers", "gguf", "llama_cpp", "onnxruntime", "psutil", "jinja2"):
    try:
        import_module(library)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{library} should have been hidden")
"""
    done = run_with_few_libraries(code)
    assert done.returncode == 0, done.stderr


def test_a_checkout_trains_without_being_installed() -> None:
    code = f"""
import runpy
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [folder for folder in sys.path if folder]
sys.argv = ["training", "--help"]
sys.path.insert(0, {str(ROOT / "training")!r})
runpy.run_path({str(ROOT / "training")!r}, run_name="__main__")
"""
    done = run_with_few_libraries(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--corpus" in done.stdout


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text('{"text": "words"}\n', encoding="utf-8")
    code = f"""
sys.modules["torch"] = None
from edge_spec.training.command import main
sys.exit(main(["--corpus", {str(tmp_path / "texts")!r}, "--out", {str(tmp_path / "out")!r}, "--stage", "prepare"]))
"""
    done = run_with_few_libraries(code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    said = 'training: error: torch is not installed; run: pip install "torch>=2.6" "tokenizers>=0.21"\n'
    assert done.stderr == said


def recipe(out: Path) -> Recipe:
    return Recipe(
        setting=SETTINGS["small"],
        texts=None,
        evaluation=None,
        out=out,
        seed=1,
        device="cpu",
        clock=Clock(),
        say=lambda line: None,
    )


@pytest.mark.parametrize(("old", "new"), [("middle", "intermediate"), ("middle-plain", "intermediate-plain")])
def test_folders_of_an_earlier_version_are_named_with_their_new_name(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / old).mkdir()
    with pytest.raises(SettingsError, match=f"{old} is from an earlier version; rename that folder to {new}$"):
        recipe(tmp_path)


def test_results_of_an_earlier_version_are_evaluated_again(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"models": {"target": {}, "middle": {}, "draft": {}}}))
    with pytest.raises(ModelFileError, match="is from an earlier version; run the stage evaluate again"):
        recipe(tmp_path).card()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "middle"], "there is no stage 'middle'; choose from prepare, target, samples, intermediate"),
        (["--steps", "middle=5"], "--steps 'middle=5' is not a valid number of steps"),
        (["--steps", "target=0"], "--steps 'target=0' is not a valid number of steps"),
        (["--setting", "huge"], "there is no setting 'huge'; choose one of small, cpu, gpu"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path), *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"training: error: {said}") and err.count("\n") == 1
