"""Laws of mixtures that are larger than their budget: some experts stay in memory, the text stays the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import compared_logits
import numpy as np
import pytest
from compared_logits import on_onnx, rows_of
from families import EXPERT_FAMILIES
from gguf_files import N_VOCAB, write_gguf
from scarce_memory import PLENTY, SCARCE, SimulatedMemory

import edge_spec
from edge_spec import TextModel
from edge_spec.cli.command import main
from edge_spec.engines.onnx import opener
from edge_spec.engines.onnx.engine import onnx_footprint
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.pool import CachedPath
from edge_spec.engines.probe import ProbeResult
from edge_spec.engines.probe_records import probe_once
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BudgetExceeded, StateError
from edge_spec.loading import plan
from edge_spec.memory import format_size
from edge_spec.models import inspect

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(available() is not None, reason="the kernels were not built"),
    pytest.mark.skipif(sys.platform == "win32", reason="no pages are dropped there"),
]
MIB = 1 << 20
HELD = 60 * MIB
N_EXPERTS, N_USED = 64, 2
TEXT = np.random.default_rng(5).integers(3, N_VOCAB, 300).tolist()


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of its weights are experts, of which a token uses a thirty-second."""
    folder = tmp_path_factory.mktemp("mixture")
    made = {**EXPERT_FAMILIES["qwen3moe, 2 of 8"], "experts": (N_EXPERTS, N_USED, 512), "n_layers": 8}
    return write_gguf(folder / "mixture.gguf", **made)


@pytest.fixture
def asked(mixture: Path) -> dict[str, Any]:
    return {"engine": "onnx", "n_ctx": 512, "n_threads": 2, "cache_dir": mixture.parent / "cache"}


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that a command prints."""
    with pytest.raises(SystemExit):
        main(list(arguments))
    return json.loads(capsys.readouterr().out)


def held_and_paged(found: Any) -> tuple[int, int, int]:
    part = found.chosen.parts["target"]
    return found.chosen.settings.held_experts, part.expert_bytes, part.paged_bytes


# --- the plan


def test_a_mixture_that_fits_is_planned_as_before_and_less_memory_holds_fewer_experts(
    mixture: Path, asked: dict[str, Any]
) -> None:
    asked |= {
        "held_bytes": HELD,
        "speculation": "off",
        "prefill_chunk": 128,
        "max_rows": 8,
        "kv_k": "f32",
        "kv_v": "f32",
    }
    whole = plan(mixture, memory=1 << 40, **asked)
    held, experts, paged = held_and_paged(whole)
    assert (held, paged) == (0, 0)
    budget, found = whole.chosen.needed_bytes, []
    while budget > 0:
        try:
            made = plan(mixture, memory=budget, **asked)
        except BudgetExceeded as error:
            least = error.needed_bytes
            break
        assert made.chosen.needed_bytes <= budget
        assert replace(made.chosen.settings, held_experts=0) == whole.chosen.settings
        assert sum(held_and_paged(made)[1:]) == experts
        told = [note for note in made.notes if "stay in memory" in note]
        size = format_size(held_and_paged(made)[2] * N_USED // N_EXPERTS)
        assert len(told) == bool(held_and_paged(made)[0]) and all(f"about {size} a token" in note for note in told)
        found.append(held_and_paged(made))
        budget = made.chosen.needed_bytes - 1
    counts = [held or N_EXPERTS for held, _, _ in found]
    assert counts[0] == N_EXPERTS and counts[1:] == [*range(counts[1], N_USED - 1, -1)]
    assert plan(mixture, memory=least, **asked).chosen.needed_bytes == least


def test_the_least_memory_is_told_with_the_experts_that_a_row_uses(mixture: Path, asked: dict[str, Any]) -> None:
    asked |= {"held_bytes": HELD, "n_ctx": 256}
    least = plan(mixture, memory=1 << 40, **asked).least["fits"]
    assert least.settings.held_experts == N_USED
    assert plan(mixture, memory=least.needed_bytes, **asked).chosen.needed_bytes == least.needed_bytes
    with pytest.raises(
        BudgetExceeded, match=r"^mixture\.gguf needs [0-9]+ MiB, .* the minimum is [0-9]+ MiB"
    ) as caught:
        plan(mixture, memory=least.needed_bytes - 1, **asked)
    assert "\n" not in str(caught.value)


def test_experts_give_way_before_the_context_does(mixture: Path, asked: dict[str, Any]) -> None:
    whole = plan(mixture, memory=1 << 40, held_bytes=HELD, speculation="off", **asked)
    smallest = plan(mixture, memory=whole.thresholds["fits"], held_bytes=HELD, **asked)
    between = plan(mixture, memory=whole.chosen.needed_bytes - MIB, held_bytes=HELD, **asked)
    assert between.chosen.n_ctx == 512
    assert smallest.chosen.settings.held_experts == N_USED


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
def test_all_of_a_transcription_is_told_as_what_the_disk_takes(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), kind)
    made = {**EXPERT_FAMILIES["qwen3moe, 2 of 8"], "experts": (32, 2, 512)}
    path = write_gguf(tmp_path / "model.gguf", kinds=kinds, **made)
    size = onnx_footprint(inspect(path), ModelSettings(n_ctx=64)).weight_bytes
    arguments = ["plan", str(path), "--engine", "onnx", "--cache-dir", str(tmp_path / "cache"), "--json"]
    whole = said(capsys, *arguments)
    found = said(capsys, *arguments, "--memory", str(whole["chosen"]["needed_bytes"] - 10 * MIB))
    assert whole["disk_bytes"] == found["disk_bytes"] == size
    lines, paged = found["chosen"]["lines"]["target"], found["chosen"]["paged_bytes"]["target"]
    assert lines["weights, mapped"] + lines["experts, mapped"] + paged == size
    assert whole["chosen"]["paged_bytes"] == {}
    assert said(capsys, "info", str(path), "--json")["disk_bytes"] == {"onnx": size}


# --- the first load


@pytest.mark.parametrize("spared", [-64 * MIB, 60 * MIB])
def test_a_first_load_tries_about_as_many_tokens_as_use_the_experts_that_stay(
    mixture: Path, asked: dict[str, Any], spared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones would have experts read again in every decode, which takes minutes from a slow disk."""
    tried: list[int | None] = []

    def noted(*arguments: Any, n_different: int | None, **values: Any) -> ProbeResult:
        tried.append(n_different)
        return probe_once(*arguments, n_different=n_different, **values)

    monkeypatch.setattr(opener, "probe_once", noted)
    asked |= {"speculation": "off", "prefill_chunk": 128, "max_rows": 8, "cache_dir": tmp_path}
    budget = plan(mixture, memory=1 << 40, **asked).chosen.needed_bytes - spared
    said: list[str] = []
    held = plan(mixture, memory=budget, **asked).chosen.settings.held_experts
    edge_spec.load(mixture, memory=budget, on_wait=said.append, **asked).close()
    calibrating = next(sentence for sentence in said if sentence.startswith("calibrating"))
    assert ("read from the disk" in calibrating) == (spared > 0)
    if spared < 0:
        assert tried == [None]
        return
    (n,) = tried
    assert n is not None
    # On the average.
    used_by = [N_EXPERTS * (1 - (1 - N_USED / N_EXPERTS) ** each) for each in (n, n + 1)]
    assert n == 1 or used_by[0] <= held < used_by[1]


# --- the text


@pytest.mark.parametrize("family", ["qwen3moe, 4 of 32", "gpt-oss, 4 of 32", "granitemoe, 4 of 32, one shared"])
@pytest.mark.parametrize("held", [1, 4, 9, 31])
def test_rows_are_the_same_bits_however_many_experts_stay_in_memory(tmp_path: Path, family: str, held: int) -> None:
    path = write_gguf(tmp_path / "model.gguf", **EXPERT_FAMILIES[family])
    model = on_onnx(path, tmp_path / "cache")
    expected = rows_of(model, TEXT[:80], [8])
    model.close()
    model = on_onnx(path, tmp_path / "cache", held_experts=held)
    for widths in ([8], [1], [3, 16]):
        model.rollback(0)
        assert np.array_equal(rows_of(model, TEXT[:80], widths), expected)
    model.close()


@pytest.mark.parametrize("spared", [-64 * MIB, 20 * MIB])
def test_experts_leave_memory_while_it_is_scarce_and_come_back_without_changing_a_word(
    mixture: Path, asked: dict[str, Any], spared: int
) -> None:
    """Those that a plan has left on the disk stay there."""
    asked |= {"speculation": "ngram", "prefill_chunk": 128, "max_rows": 8}

    def loaded(decide: Callable[[], int]) -> TextModel:
        budget = plan(mixture, memory=1 << 40, **asked).chosen.needed_bytes - spared
        return edge_spec.load(mixture, memory=budget, watch=SimulatedMemory(decide).watch(), **asked)

    def told(model: TextModel, seen: list[str]) -> list[list[int]]:
        replies = []
        for question in range(6):
            reply = model.generate(tokens=[*TEXT[:40], question + 3], max_tokens=40, seed=7, ignore_eos=True)
            reply.read()
            seen += reply.notices
            replies.append(reply.token_ids)
        return replies

    notices: list[str] = []
    with loaded(lambda: PLENTY) as model:
        calm, profile = told(model, notices), model.profile.name
        assert model.degradations == ()
    rng, held = random.Random(3), set()

    def decide() -> int:
        held.add(model.degradations)
        down = "fewer experts stay in memory" not in model.degradations and rng.random() < 0.1
        return SCARCE if down else PLENTY if rng.random() < 0.1 else 150

    with loaded(decide) as model:
        assert told(model, notices) == calm
        assert model.profile.name == profile
        model.ledger.check_integrity()
    assert held == {(), ("fewer experts stay in memory",)}
    assert notices == []


@pytest.mark.parametrize("reuse_step", [1, 128])
def test_a_reply_is_told_where_its_cells_could_not_be_restored_and_may_be_read_otherwise(
    mixture: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, reuse_step: int
) -> None:
    def refuse(self: CachedPath, state: bytes) -> None:
        self.pool.capabilities = replace(self.pool.capabilities, reuse_step=reuse_step)
        raise StateError("there is no room")

    monkeypatch.setattr(CachedPath, "restore", refuse)
    asked |= {"speculation": "off", "prefill_chunk": 128, "max_rows": 8}
    budget = plan(mixture, memory=1 << 40, **asked).chosen.needed_bytes + 64 * MIB
    seen = iter([PLENTY] * 5 + [SCARCE])
    watch = SimulatedMemory(lambda: next(seen, 150)).watch()
    with edge_spec.load(mixture, memory=budget, watch=watch, **asked) as model:
        reply = model.generate(tokens=TEXT[:40], max_tokens=40, seed=7, ignore_eos=True)
        reply.read()
        assert model.degradations == ("fewer experts stay in memory",)
    assert ["words may differ" in notice for notice in reply.notices] == [True] * (reuse_step != 1)


DECODE = """
import os, sys
from pathlib import Path
import edge_spec.engines.onnx.session as session
from compared_logits import on_onnx, rows_of
from edge_spec.memory.device import Device
from edge_spec.speculation.tree import Tree

path, folder, held, n_free = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
session.probe = lambda: Device(
    total_bytes=1 << 40, available_bytes=n_free, n_physical_cores=1, n_logical_cores=1
)

def mark(name):
    with open(os.environ["ADVICE"], "a") as told:
        print(name, *[-1, 0, 0], file=told)

mark("open")
model = on_onnx(path, folder, held_experts=held)
files = {int(each.name): os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()}
print([number for number, name in files.items() if name.endswith("weights.bin")])
for token in range(3, 43):
    mark("decode")
    model.decode(Tree.sequence([token]))
    model.keep([0])
model.close()
mark("closed")
"""


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that tells what a process says of its pages."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("only Linux is told which pages of a file are needed no longer, and a C compiler is needed")
    made = tmp_path_factory.mktemp("advice") / "advice.so"
    source = Path(__file__).with_name("advice.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


@pytest.mark.parametrize("held", [N_USED, 16])
def test_experts_that_were_read_leave_the_systems_cache_where_it_has_no_room_for_the_file(
    mixture: Path, tmp_path: Path, advice: Path, held: int
) -> None:
    """Otherwise the system drops what every token uses along with them, and takes the reading for scarce memory."""
    n_matrices = 3 * inspect(mixture).n_layers
    for n_free in (0, 1 << 40):
        told = tmp_path / f"with {n_free} free"
        environment = {**os.environ, "LD_PRELOAD": str(advice), "ADVICE": str(told)}
        environment["PYTHONPATH"] = str(Path(compared_logits.__file__).parent)
        command = [sys.executable, "-c", DECODE, str(mixture), str(tmp_path), str(held), str(n_free)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        told_of = [(name, *map(int, numbers)) for name, *numbers in map(str.split, told.read_text().splitlines())]
        forgotten = [(number, *about) for number, (name, *about) in enumerate(told_of) if name == "forget"]
        names = [name for name, *_ in told_of]
        ends = [number for number, name in enumerate(names) if name in ("decode", "closed")]
        assert len(ends) == 41
        if n_free:
            assert forgotten == [] and names.count("fetch") > n_matrices * held
            continue
        # At first all that the matrices of experts may have left there, then what was read and does not stay.
        whole, each = [(first, n) for *_, first, n in forgotten[:n_matrices]], forgotten[n_matrices:]
        assert {file for _, file, *_ in forgotten} <= set(json.loads(done.stdout))
        assert all(place + n <= after for (place, n), (after, _) in pairwise(whole))
        counts = {names[:end].count("fetch") - (names[:end].count("forget") - n_matrices) for end in ends}
        assert counts == {n_matrices * held}
        assert len(each) > n_matrices
        for number, _, first, n in each:
            place, of_all = max(matrix for matrix in whole if matrix[0] <= first)
            assert n == of_all // N_EXPERTS and (first - place) % n == 0 and first + n <= place + of_all
            # What is mapped stays in the cache.
            assert names[number - 3] == "drop"


WRITE = """
import json, re, sys
from pathlib import Path
import edge_spec
from edge_spec.loading import plan
from edge_spec.memory import format_size

def kib(name, text):
    return int(re.search(name + r":\\s+(\\d+) kB", text)[1])

def mapped_bytes():
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    return sum(kib("Rss", each) << 10 for each in maps if "weights.bin" in each.partition("\\n")[0])

asked = json.loads(sys.argv[1])
text, model, spared = (asked.pop(name) for name in ("text", "model", "spared"))
budget = plan(model, memory=1 << 40, **asked).chosen.needed_bytes - spared
with edge_spec.load(model, memory=budget, **asked) as model:
    reply = model.generate(tokens=text, max_tokens=120, seed=7, ignore_eos=True)
    reply.read()
    lines = {line.name: line.predicted_bytes for line in model.ledger}
    print(json.dumps({
        "tokens": reply.token_ids,
        "budget": budget,
        "profile": model.profile.name,
        "notes": list(model.notes),
        "given up": [*model.degradations, *reply.notices],
        "planned": lines["experts, mapped"] + lines["weights, mapped"],
        "mapped": mapped_bytes(),
        "peak": kib("VmHWM", Path("/proc/self/status").read_text()) << 10,
    }))
"""


def written(mixture: Path, asked: dict[str, Any], spared: int) -> dict[str, Any]:
    """Return what a process of its own wrote and held, with so much less memory than all of it needs."""
    given = {"model": str(mixture), "text": TEXT, "spared": spared, **asked, "cache_dir": str(asked["cache_dir"])}
    done = subprocess.run([sys.executable, "-c", WRITE, json.dumps(given)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read as Linux tells it")
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_a_mixture_larger_than_its_budget_writes_the_same_text_inside_of_it(
    mixture: Path, asked: dict[str, Any], speculation: str
) -> None:
    asked |= {"speculation": speculation, "prefill_chunk": 128, "max_rows": 8}
    whole = written(mixture, asked, -64 * MIB)
    assert whole["notes"] == []
    for spared in (20 * MIB, 60 * MIB):
        found = written(mixture, asked, spared)
        assert "experts of a layer" in found["notes"][0]
        assert (found["tokens"], found["profile"]) == (whole["tokens"], whole["profile"])
        assert found["given up"] == []
        assert found["mapped"] <= found["planned"] < whole["planned"]
        assert found["peak"] <= found["budget"]


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read as Linux tells it")
@pytest.mark.parametrize("spared", [20 * MIB, 60 * MIB, 70 * MIB])
def test_a_first_load_that_makes_and_tries_everything_stays_inside_of_the_budget(
    mixture: Path, asked: dict[str, Any], spared: int, tmp_path: Path
) -> None:
    asked |= {"speculation": "off", "prefill_chunk": 128, "max_rows": 8, "cache_dir": tmp_path}
    found = written(mixture, asked, spared)
    assert found["mapped"] <= found["planned"]
    assert found["peak"] <= found["budget"]
