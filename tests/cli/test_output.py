"""Laws of what verbs print: the same in a pipe, on any terminal and in any encoding."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from edge_spec.cli import main
from edge_spec.cli.output import print_json, print_records, print_table

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "edge_spec"]

Piped = Callable[..., str]


@pytest.fixture(scope="module")
def piped(surroundings: dict[str, str]) -> Piped:
    """What a verb prints into a pipe in a narrow terminal."""

    def run(*arguments: str, **more: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            env={**surroundings, "COLUMNS": "40", **more},
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    return run


def rows_of(plan: str) -> dict[str, tuple[float, int]]:
    """MiB and length of the bar by the line's name."""
    found = re.findall(r"^(?:process|target|draft|intermediate)? +(.*?)  +([\d,]+\.\d)(?:  (#+))?$", plan, re.MULTILINE)
    return {name: (float(size.replace(",", "")), len(bar)) for name, size, bar in found}


def test_a_plan_is_not_wrapped_and_its_bars_can_be_read_with_any_budget(piped: Piped) -> None:
    plans = [rows_of(piped("plan", "demo", "--threads", "1", "--memory", memory)) for memory in ("200MiB", "4000GiB")]
    for plan in plans:
        # Of 40, against the longest.
        process, cache = plan["interpreter and libraries"], plan["KV cache"]
        assert process[1] == 40
        assert abs(cache[1] - 40 * cache[0] / process[0]) <= 2
    assert plans[1]["budget"] == (4000 << 10, 0)
    assert {name for name, (_, bar) in plans[0].items() if not bar} == {"left", "budget"}


def test_the_rows_of_a_plan_add_up_to_its_budget(piped: Piped) -> None:
    for memory in ("150MiB", "1GiB"):
        table = piped("plan", "demo", "--threads", "1", "--speculation", "hierarchy", "--memory", memory)
        sizes = [float(size.replace(",", "")) for size in re.findall(r" ([\d,]+\.\d)(?:  #+)?$", table, re.MULTILINE)]
        assert sizes[-1] == rows_of(table)["budget"][0]
        # Each is rounded to a tenth.
        assert abs(sum(sizes[:-1]) - sizes[-1]) <= 0.05 * len(sizes)


def test_a_plan_tells_what_loading_would(capfd: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> tuple[str, list[str]]:
        with pytest.raises(SystemExit) as left:
            main([arguments[0], "demo", "--threads", "1", "--ctx", "100000", "--memory", "4GiB", *arguments[1:]])
        assert not left.value.code
        out, err = capfd.readouterr()
        return out, re.findall("edge-spec: note: (.*was trained for.*)", err)

    _, loading = told("run", "-n", "1", "-p", "A")
    assert loading and told("plan")[1] == loading
    assert any("was trained for" in note for note in json.loads(told("plan", "--json")[0])["notes"])


def test_threads_beyond_those_of_the_processor_are_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_spec.engines.settings.cores", lambda: (2, 4))
    said = "is {}, and this processor runs 4 threads at a time: these are used"
    for asked, notes in (
        ({"--threads": "4", "--threads-batch": "4"}, []),
        ({"--threads": "5"}, ["--threads " + said.format(5)]),
        ({"--threads": "1", "--threads-batch": "512"}, ["--threads-batch " + said.format(512)]),
    ):
        with pytest.raises(SystemExit) as left:
            main(["plan", "demo", *(word for pair in asked.items() for word in pair)])
        assert not left.value.code
        assert re.findall("edge-spec: note: (--threads.*)", capfd.readouterr().err) == notes


def test_a_plan_has_one_unit(piped: Piped) -> None:
    plan = piped("plan", "demo", "--threads", "1", "--memory", "40GiB")
    table = plan[plan.index("who ") :]
    assert "MiB" in table and "GiB" not in table
    assert re.search(r"speculation \w+, context \d+, .*chunk \d+, rows \d+$", plan.splitlines()[0])
    measured = re.findall(r"(?:pays from \d+ MiB|pays if|not shown to pay)", plan)
    assert ("Whether drafts pay here is not measured yet: run edge-spec bench" in plan) == (not measured)


def test_bench_is_not_wrapped(piped: Piped) -> None:
    arguments = ["bench", "demo", "--threads", "1", "--limit", "1", "--rounds", "1", "-n", "4", "--modes", "ngram"]
    sampler, gap, head, off, ngram, blank, best, *_ = piped(*arguments).splitlines()
    assert (sampler[:9], gap) == ("sampler: ", "")
    first = ["mode", "tokens/s", "speed-up", "interval", "total"]
    assert head.split() == [*first, "tokens/round", "drafted", "accepted", "drafting", "verifying"]
    assert (blank, best[:9]) == ("", "best here")
    rows = (off, ngram)
    assert [row.split()[0] for row in rows] == ["off", "ngram"]
    assert all(len(row.split()) == len(head.split()) for row in rows)
    assert off.split()[6:8] == ["0", "-"]


def test_bench_in_json_is_one_object_per_mode(piped: Piped) -> None:
    arguments = "bench demo --json --threads 1 --limit 1 --rounds 1 -n 4 --modes ngram"
    *found, last = [json.loads(line) for line in piped(*arguments.split()).splitlines()]
    assert set(last) == {"verdict"}
    assert [record["mode"] for record in found] == ["off", "ngram"]
    assert found[0]["speed_up"] == 1
    assert all(record["tokens_per_s"] > 0 and record["speed_up"] > 0 for record in found)


def test_output_that_has_no_letters_for_it_is_no_error(piped: Piped) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert "budget" in piped("plan", "demo", "--threads", "1", **plain)
    asked = ["run", "demo", "--threads", "1", "--json", "--seed", "7", "-n", "4", "-p", "Größe"]
    assert json.loads(piped(*asked, **plain))["token_ids"] == json.loads(piped(*asked))["token_ids"]


def test_tables_are_as_wide_as_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "number"), [("x" * 200, "1"), ("y", "1,000")], right=(1,))
    assert capsys.readouterr().out.splitlines() == [
        f"a{' ' * 201}number",
        f"{'x' * 200}       1",
        f"y{' ' * 202}1,000",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_json_survives_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    monkeypatch.setattr(sys, "stdout", out)
    print_json({"text": "Größe 🐶"})
    out.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == {"text": "Größe 🐶"}
    assert ("Größe".encode() in raw.getvalue()) == (encoding == "utf-8")
    assert raw.getvalue().endswith(os.linesep.encode())


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_records_are_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    rows = [(f"model-{n}", f"{n} B", "a reason that is longer than a narrow line has room for", "") for n in (1, 20)]
    shown = []
    for stream in (Screen(), io.StringIO()):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", stream)
        print_records(("name", "size", "fits", "here"), rows, right=(1,))
        shown.append(stream.getvalue().splitlines())
    on_screen, in_pipe = shown
    assert len(in_pipe) == 3
    assert all(len(line) <= columns for line in on_screen)
    assert (on_screen == in_pipe) == (columns == 200)
    told = " ".join(" ".join(on_screen).split())
    assert all(name in told and size in told and why in told for name, size, why, _ in rows)
