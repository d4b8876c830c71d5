"""What drafters learn is kept from run to run; it changes how fast a text is written, and never the text."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.cli import main
from edge_spec.controller.measurements import Gain
from edge_spec.controller.plan import Plan
from edge_spec.errors import BAD_RECORD
from edge_spec.loading import plan
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.claims import Calibration
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.text import Text

pytestmark = pytest.mark.long

PROMPT = "Tell me a story."
RECORD = "probes"


def written(cache: Path, **settings: Any) -> tuple[list[int], int]:
    """A reply, and how many tokens were drafted for it."""
    with edge_spec.load("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=cache, **settings) as model:
        reply = model.generate(PROMPT, seed=4, max_tokens=90, ignore_eos=True)
        reply.read()
        return reply.token_ids, reply.statistics.drafted


def record(cache: Path) -> Path:
    """The file in which something was kept."""
    (found,) = (path for path in (cache / RECORD).glob("*.json") if "learned" in json.loads(path.read_text()))
    return found


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder after a run."""
    cache = tmp_path_factory.mktemp("cache")
    written(cache)
    return cache


@pytest.fixture
def cache(learned: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(learned, tmp_path / "cache"))


def test_a_second_run_writes_the_same_and_learns_on(cache: Path) -> None:
    before = json.loads(record(cache).read_text())["learned"]["text"]
    plain, _ = written(cache, speculation="off")
    assert json.loads(record(cache).read_text())["learned"]["text"] == before
    again, _ = written(cache)
    assert again == plain
    after = json.loads(record(cache).read_text())["learned"]["text"]
    assert after["rounds"] > before["rounds"]
    assert before["drafters"].keys() == after["drafters"].keys()


def test_a_run_of_a_few_rounds_replaces_nothing(cache: Path) -> None:
    before = record(cache).read_bytes()
    with edge_spec.load("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=cache) as model:
        model.generate(PROMPT, max_tokens=4).read()
    assert record(cache).read_bytes() == before


def test_what_use_alone_has_shown_is_no_claim(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is not compared with plain decoding in the same minutes, and may have drafted nothing."""
    written(cache)
    found = planned(cache)
    assert (found.gains, found.speed_ups, found.pays) == ({}, {}, {})
    assert "times as fast" not in printed(cache, capsys)


def test_a_plan_claims_what_is_sure(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, tuple[float, float, float, int]] = {
        "sequence": (1.4, 0.9, 1.8, 300),  # it may have been nothing
        "tree": (1.3, 1.2, 1.5, 0),  # nothing was drafted: it was something else
    }
    keep(cache, "sequence", *(gain(mode, *numbers) for mode, numbers in asked.items()))
    keep(cache, "ngram", gain("ngram", 0.9, 0.8, 0.95, 700))
    found = planned(cache)
    assert {stage: each.mode for stage, each in found.gains.items()} == {"drafter": "sequence", "tables": "ngram"}
    assert found.speed_ups == {"tables": 0.9}
    assert found.pays == {}
    said = printed(cache, capsys)
    assert "not shown to pay: sequence was 0.90 to 1.80 times as fast as plain decoding here" in said
    assert (
        "not shown to pay: ngram was 0.90 (0.80 to 0.95) times as fast as plain decoding here, "
        "with 700 tokens drafted in 300 rounds"
    ) in said
    # A gain without drafts is none, however it was kept.
    assert not gain("tree", *asked["tree"]).is_sure


def gain(mode: str, speed_up: float, low: float, high: float, drafted: int = 900) -> Gain:
    return Gain(speed_up=speed_up, low=low, high=high, drafted=drafted, rounds=300, mode=mode)


def printed(cache: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["plan", "demo", "--engine", "llama", "--ctx", "256", "--threads", "1", "--cache-dir", str(cache)])
    assert not left.value.code
    return capsys.readouterr().out


def keep(cache: Path, speculation: str, *gains: Gain) -> None:
    asked: dict[str, Any] = {"engine": "llama", "n_ctx": 256, "n_threads": 1}
    with edge_spec.load("demo", cache_dir=cache, speculation=speculation, **asked) as model:
        for gain in gains:
            model.keep_gain(gain)


def planned(cache: Path, **settings: Any) -> Plan:
    return plan("demo", cache_dir=cache, **{"engine": "llama", "n_ctx": 256, "n_threads": 1, **settings})


def test_a_plan_says_from_which_budget_on_a_mode_pays(cache: Path) -> None:
    before = planned(cache)
    assert before.gains == {}
    slow, fast = gain("sequence", 1.4, 0.9, 1.8), gain("tree", 1.3, 1.2, 1.5)
    tables = gain("ngram", 0.9, 0.8, 0.95)
    keep(cache, "sequence", slow, fast)
    keep(cache, "ngram", tables)
    found = planned(cache)
    assert found.gains == {"drafter": fast, "tables": tables}
    assert found.speed_ups == {stage: gain.speed_up for stage, gain in found.gains.items()}
    # With the types of cached keys and values with which it was measured, which are larger than the smallest.
    assert "drafter" in found.pays and "tables" not in found.pays
    assert found.pays["drafter"].kv == found.chosen.kv != found.least["drafter"].kv
    assert found.thresholds["drafter"] < found.pays["drafter"].needed_bytes < found.chosen.needed_bytes
    assert (found.chosen.choices, found.profile) == (before.chosen.choices, before.profile)
    assert planned(cache, n_threads=2).gains == {}


def broken(value: Any, chooser: random.Random) -> Any:
    """A JSON value with something else somewhere inside."""
    if chooser.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return chooser.choice([None, -1, 0, 1e999, "x", [], {}, [[]], {"": 0}, float("nan"), True])
    place = chooser.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed = value.copy()
    changed[place] = broken(value[place], chooser)
    return changed


def test_a_damaged_record_changes_nothing_but_speed(cache: Path) -> None:
    plain, _ = written(cache, speculation="off")
    path = record(cache)
    whole = path.read_text()
    for damaged in (whole[: len(whole) // 2], whole.replace('"rounds"', '"turns"')):
        path.write_text(damaged)
        assert written(cache)[0] == plain
        plan("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=cache)


def test_no_record_makes_a_chooser_that_cannot_count(learned: Path) -> None:
    whole = json.loads(record(learned).read_text())["learned"]["text"]
    chooser = random.Random(1)
    n_refused = 0
    for _ in range(400):
        table = NgramDrafter()
        drafter = Chooser([table], seconds={1: 0.01, 2: 0.012})
        try:
            drafter.recall(broken(whole | {"drafters": {table.name: next(iter(whole["drafters"].values()))}}, chooser))
        except BAD_RECORD:
            n_refused += 1
        text = [1, 2, 3, 1, 2, 3, 1, 2]
        drafter.begin(Text([*text, 3]), Sampler(SamplerSettings(), text))
        tree, prices = drafter.draft(4), drafter.prices
        assert 0 < prices.plain_s < 1e6 and 0 < prices.rate < 1e9
        assert all(0 < prices.curve(n) < 1e6 for n in range(1, 20))
        assert all(0 <= value <= 1 for value in tree.values)
    assert 100 < n_refused < 400


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("a file where the folder should be")
    assert written(tmp_path)[0]


def test_claims_count_as_before_and_new_ones_more() -> None:
    chooser = random.Random(2)
    first = Calibration(greedy=False)
    for _ in range(3000):
        claim = chooser.random()
        first.learn(claim, chooser.random() < claim**2, chooser.randrange(3))
    second = Calibration(greedy=False)
    second.recall(json.loads(json.dumps(first.as_json())))
    for rank in range(3):
        for claim in (0.01, 0.3, 0.5, 0.9):
            assert second(claim, rank) == pytest.approx(first(claim, rank))
    for calibration in (first, second):
        for _ in range(60):
            calibration.learn(0.5, True)
    assert second(0.5) > first(0.5) + 0.1


def test_a_curve_is_recalled_with_its_factor() -> None:
    first = CostCurve({1: 0.010, 4: 0.014, 8: 0.020})
    for _ in range(200):
        first.learn(1, 0.030)
        first.learn(4, 0.050)
    second = CostCurve({1: 0.010, 2: 0.012, 4: 0.014})
    second.recall(json.loads(json.dumps(first.as_json())))
    assert [second(n) for n in (1, 4, 8)] == pytest.approx([first(n) for n in (1, 4, 8)])


@pytest.mark.parametrize("seconds", [{"1": 0}, {"1": -1}, {"x": 1}, {"0": 1}, {"1": None}, {"1": float("inf")}])
def test_a_damaged_curve_is_refused_whole(seconds: dict[str, Any]) -> None:
    curve = CostCurve({1: 0.010, 4: 0.014})
    with pytest.raises((ValueError, TypeError)):
        curve.recall({"4": 1.0, **seconds})
    assert curve(4) == 0.014
