"""Laws of check and bench: a difference is found where there is one, and only there; every way is timed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from letters import LetterTokenizer
from watched_table import rounding

from edge_spec import TextModel
from edge_spec.cli import main
from edge_spec.engines.onnx.kernels import available
from edge_spec.evaluation.bench import bench
from edge_spec.evaluation.check import Comparison, Unchecked, check, random_limits
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

TABLE = random_table(5, order=1, seed=2, scale=1.0)
PROMPTS = ["abc", "deadbeed", "a", "bad" * 9]
Command = Callable[..., tuple[int, str, str]]
MODES = ("sequence", "tree", "hierarchy", "ngram")
needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")


def drafter(mode: str) -> Drafter:
    def small(scale: float) -> TableModel:
        return TableModel(random_table(5, order=1, seed=3, scale=scale, like=TABLE), n_ctx=200)

    if mode == "off":
        return NoDrafter()
    if mode == "ngram":
        return NgramDrafter(shortest=1)
    if mode == "hierarchy":
        return HierarchyDrafter(ModelDrafter(small(1.0), width=2, depth=2), small(0.3))
    return ModelDrafter(small(0.5), width=1 if mode == "sequence" else 3)


def opener(
    *,
    tables: dict[str, Logits] | None = None,
    distort: Callable[[Logits, int], Logits] | None = None,
    notes: tuple[str, ...] = (),
    falls_back: str = "",
    n_ctx: int = 200,
    draws_limits: bool = False,
    limit: int = 4,
) -> Callable[[str], TextModel]:
    """Opens table models; some may have a table of their own, a kernel that rounds, or only plain decoding."""

    def open_model(mode: str) -> TextModel:
        actual = "off" if mode == falls_back else mode
        target = TableModel((tables or {}).get(mode, TABLE), n_ctx=n_ctx)
        if distort is not None:
            rounding(target, distort)
        next_limit = random_limits(6) if draws_limits else (lambda: limit)
        return TextModel(
            Target(Slot(target, drafter(actual))), next_limit, LetterTokenizer(end=4), mode=actual, notes=notes
        )

    return open_model


def comparisons(open_model: Callable[[str], TextModel], modes: Sequence[str] = MODES) -> list[Comparison]:
    found = list(check(open_model, PROMPTS, modes=modes, max_tokens=40, ignore_eos=True))
    assert all(isinstance(each, Comparison) for each in found)
    return [each for each in found if isinstance(each, Comparison)]


# --- check


@pytest.mark.long
@pytest.mark.parametrize("draws_limits", [False, True])
def test_drafts_that_are_verified_make_no_difference(draws_limits: bool) -> None:
    found = comparisons(opener(draws_limits=draws_limits))
    assert [each.first_difference for each in found] == [None] * len(found)
    assert {(each.mode, each.prompt, each.temperature) for each in found} == {
        (mode, prompt, temperature) for mode in MODES for prompt in range(4) for temperature in (0.0, 0.7, 1.0)
    }
    assert all(each.n_tokens == 40 for each in found)
    for mode in MODES:
        assert max(each.mean_length for each in found if each.mode == mode) > 1.1


def test_a_model_that_differs_is_found_out() -> None:
    other = random_table(5, order=1, seed=9, scale=1.0)
    found = comparisons(opener(tables={"tree": other}))
    assert all((each.first_difference is None) == (each.mode != "tree") for each in found)
    assert all(each.first_difference is None or 0 <= each.first_difference < 40 for each in found)


def test_the_first_difference_is_where_the_texts_part() -> None:
    """Only what follows one letter differs, so only there can the texts part."""
    other = TABLE.copy()
    other[3] = np.roll(other[3], 1)
    found = comparisons(opener(tables={"sequence": other}), ["sequence"])
    for each in found:
        with opener()("off") as model:
            plain = model.generate(
                PROMPTS[each.prompt], max_tokens=40, ignore_eos=True, seed=1 + each.prompt, temperature=each.temperature
            )
            plain.read()
        if each.first_difference is not None:
            before = (*plain.prompt, *plain.token_ids)[len(plain.prompt) + each.first_difference - 1]
            assert before == 3
    assert any(each.first_difference is not None for each in found)


def test_a_kernel_that_rounds_wide_rows_otherwise_is_found_out() -> None:
    def distort(row: Logits, n_rows: int) -> Logits:
        return row if n_rows == 1 else row[::-1].copy()

    found = comparisons(opener(distort=distort), ["sequence"])
    assert any(each.first_difference is not None for each in found)


def test_notes_come_first_and_what_cannot_be_had_is_not_called_proven() -> None:
    found = list(check(opener(notes=("careful",), falls_back="tree"), PROMPTS[:1], modes=["tree", "ngram"]))
    assert [each for each in found if isinstance(each, str)] == ["off: careful", "tree: careful", "ngram: careful"]
    assert [each.mode for each in found if isinstance(each, Unchecked)] == ["tree"]
    assert {each.mode for each in found if isinstance(each, Comparison)} == {"ngram"}


def test_prompts_that_do_not_fit_are_left_out() -> None:
    found = comparisons(opener(n_ctx=9))
    assert {each.prompt for each in found} == {0, 1, 2}


# --- bench


def test_every_mode_is_timed_side_by_side() -> None:
    runs: list[int] = []
    found = list(
        bench(
            opener(),
            PROMPTS,
            modes=["ngram", "off", "tree"],
            rounds=2,
            max_tokens=30,
            ignore_eos=True,
            on_run=lambda: runs.append(1),
        )
    )
    assert [speed.mode for speed in found] == ["off", "ngram", "tree"]
    assert len(runs) == 3 * (1 + 2 * len(PROMPTS))
    for speed in found:
        assert speed.tokens_per_s > 0
        assert speed.speed_up > 0
        assert 0 <= speed.draft_share + speed.verify_share <= 1
        assert 0 <= speed.acceptance <= 1
    off, ngram, tree = found
    assert (off.speed_up, off.mean_length, off.acceptance) == (1, 1, 0)
    assert min(ngram.mean_length, tree.mean_length) > 1.1


def test_runs_that_warm_up_are_not_counted() -> None:
    model = opener()("tree")
    replies = [model.generate(PROMPTS[n], max_tokens=30, seed=1 + n, ignore_eos=True) for n in range(2)]
    assert all(len(reply.read()) == 30 for reply in replies)
    done = [reply.statistics for reply in replies]
    _, tree = bench(opener(), PROMPTS[:2], modes=["tree"], rounds=1, max_tokens=30, ignore_eos=True)
    assert tree.acceptance == sum(each.accepted for each in done) / sum(each.drafted for each in done)


def test_a_slow_mode_is_called_slow() -> None:
    def slow(row: Logits, n_rows: int) -> Logits:
        time.sleep(0.002)
        return row

    _, found = bench(lambda mode: opener(distort=slow if mode == "tree" else None)(mode), ["abc"], modes=["tree"])
    assert found.speed_up < 0.5


def test_what_was_drafted_is_told_with_its_rows() -> None:
    found = {
        speed.mode: (speed.drafter, speed.shape, speed.rows > 1)
        for speed in bench(opener(limit=9), PROMPTS, modes=MODES, rounds=1, max_tokens=30, ignore_eos=True)
    }
    assert found == {
        "off": ("", "", False),
        "sequence": ("draft", "chain", True),
        "tree": ("draft", "tree", True),
        "hierarchy": ("intermediate", "chain", True),
        "ngram": ("ngram", "chain", True),
    }


def test_texts_are_compared_and_categories_told_apart() -> None:
    def nudged(row: Logits, n_rows: int) -> Logits:
        return row[::-1].copy()

    def opened(mode: str) -> TextModel:
        return opener(distort=nudged if mode == "tree" else None)(mode)

    found = {
        speed.mode: speed
        for speed in bench(opened, ["abc", "bca"], modes=["ngram", "tree"], categories=["x", "y"], rounds=2)
    }
    assert {mode: speed.same_text for mode, speed in found.items()} == {"off": True, "ngram": True, "tree": False}
    assert all(set(speed.by_category) == {"x", "y"} for speed in found.values())
    assert all(speed.interval[0] <= speed.speed_up <= speed.interval[1] for speed in found.values())


# --- the verbs


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, probe_cache: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(probe_cache))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([*arguments])
        return (int(caught.value.code or 0), *capsys.readouterr())

    return call


SMALL = ["--limit", "1", "--threads", "1", "--ctx", "128"]


@pytest.fixture(params=["llama", pytest.param("onnx", marks=needs_kernels)])
def engine(request: pytest.FixtureRequest, command: Command) -> str:
    """An engine on which drafts change no bit here."""
    name = str(request.param)
    _, out, _ = command("run", "demo", "-p", "a", "-n", "1", *SMALL[2:], "--engine", name, "--json")
    if json.loads(out)["identity"] != "bitwise":
        pytest.skip("on this device rows depend on how many are computed together")
    return name


@pytest.mark.long
def test_the_check_verb_proves_the_demo(command: Command, engine: str) -> None:
    asked = ["check", "demo", *SMALL, "--engine", engine, "-n", "12", "--temperatures", "0,1", "--random-limits"]
    code, out, _ = command(*asked, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert {(each["mode"], each["temperature"]) for each in found} == {(mode, t) for mode in MODES for t in (0, 1)}
    assert set(found[0]) == {"mode", "prompt", "temperature", "first_difference", "n_tokens", "mean_length"}
    assert (code, {each["first_difference"] for each in found}) == (0, {None})
    code, out, _ = command(*asked, "--modes", "ngram")
    assert (code, out.splitlines()[-1]) == (0, "2 replies, 24 tokens: every token is the same")


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Arguments of a verb; what it opens then writes another text in the mode ``tree``."""
    (tmp_path / "prompts").write_text("abc\n")
    open_model = opener(tables={"tree": random_table(5, order=1, seed=9, scale=1.0)})
    for verb in ("check", "bench"):
        monkeypatch.setattr(f"edge_spec.cli.{verb}.load", lambda *, speculation, **_: open_model(speculation))
    return ["demo", "-n", "40", "--prompts", str(tmp_path / "prompts")]


@pytest.mark.usefixtures("differing")
def test_the_check_verb_finds_what_differs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("abc\n")
    asked = [
        "check",
        "demo",
        "-n",
        "40",
        "--temperatures",
        "0,1",
        "--ignore-eos",
        "--prompts",
        str(tmp_path / "prompts"),
    ]
    code, out, _ = command(*asked, "--modes", "ngram,tree")
    assert code == 1
    assert [line.split()[:6] for line in out.splitlines()[1:5]] == [
        [mode, temperature, "40", equal, "of", "1"]
        for mode, equal in (("ngram", "1"), ("tree", "0"))
        for temperature in "01"
    ]
    assert [line.rpartition(" ")[0] for line in out.splitlines()[5:7]] == [
        f"differs: tree, temperature {temperature}, prompt 1, from token" for temperature in "01"
    ]
    assert out.splitlines()[7] == "4 replies, 160 tokens: 2 replies differ"
    code, out, _ = command(*asked, "--modes", "ngram,tree", "--json")
    differs = [json.loads(line)["first_difference"] is not None for line in out.splitlines()]
    assert (code, differs) == (1, [False, False, True, True])
    assert command(*asked, "--modes", "ngram")[0] == 0


@pytest.mark.long
def test_the_bench_verb_times_the_demo(command: Command, engine: str) -> None:
    code, out, err = command("bench", "demo", *SMALL, "--engine", engine, "-n", "6", "--rounds", "1", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, "error" in err) == (0, False)
    verdict = found.pop()["verdict"]
    assert verdict["best"] in ("off", *MODES)
    assert {"speed_up", "interval", "mean_length", "share_of_limit", "drafter", "shape", "rows"} <= set(verdict)
    told = {each["mode"]: (each["drafter"], each["shape"]) for each in found}
    assert told["off"] == ("", "") and told["sequence"] == ("draft", "chain") and told["ngram"][0] in ("", "ngram")
    assert (verdict["model"], verdict["engine"]) == ("demo", engine)
    assert [each["same_text"] for each in (*found, verdict)] == [True] * 7
    assert [each["mode"] for each in found] == ["off", "auto", *MODES]
    assert all(each["tokens_per_s"] > 0 for each in found)
    assert found[0]["speed_up"] == 1
    asked = ["bench", "demo", *SMALL, "--engine", engine, "-n", "3", "--rounds", "1", "--modes", "ngram"]
    code, out, _ = command(*asked)
    assert (code, "ngram" in out, "best here: " in out) == (0, True, True)
    assert out.splitlines()[-1].endswith("; 1 replies in every mode: every token is the same")


@pytest.mark.usefixtures("differing")
def test_the_bench_verb_says_where_texts_differ(command: Command, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("abc\n")
    asked = [
        "bench",
        "demo",
        "-n",
        "40",
        "--rounds",
        "1",
        "--modes",
        "ngram,tree",
        "--prompts",
        str(tmp_path / "prompts"),
    ]
    code, out, _ = command(*asked)
    assert code == 0
    assert out.splitlines()[-1].endswith("; 1 replies in every mode: TOKENS DIFFER, see edge-spec check")
    _, out, _ = command(*asked, "--json")
    *speeds, last = map(json.loads, out.splitlines())
    assert [each["same_text"] for each in speeds] == [True, True, False]
    assert last["verdict"]["same_text"] is False


@pytest.mark.parametrize(
    ("arguments", "content", "code"),
    [
        (["--modes", "magic"], None, 2),
        (["--prompts", "FILE"], b"", 1),
        (["--prompts", "FILE"], b"\xff", 1),
        (["--prompts", "FILE"], b'{"prompt": 7}', 1),
        (["--prompts", "no-such-file"], None, 1),
        (["--limit", "0"], None, 2),
    ],
    ids=["mode", "no prompts", "no UTF-8", "no text", "no file", "limit 0"],
)
def test_bad_input_is_one_line(
    command: Command, tmp_path: Path, arguments: list[str], content: bytes | None, code: int
) -> None:
    if content is not None:
        (tmp_path / "prompts").write_bytes(content)
    arguments = [str(tmp_path / "prompts") if argument == "FILE" else argument for argument in arguments]
    for verb in ("check", "bench"):
        found, out, err = command(verb, "demo", *arguments)
        assert (found, out) == (code, "")
        assert err.startswith("edge-spec: error: ")
        assert err.count("\n") == 1
