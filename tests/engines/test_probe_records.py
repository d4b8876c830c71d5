"""Laws of probing once: it ends in time, what was tried serves all settings that it covers, and nothing else does."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from rounding_model import RoundingModel

from edge_spec.engines.probe import OWN_READINGS, READINGS, ProbeResult, Readings, probe
from edge_spec.engines.probe_records import known_profile, probe_once
from edge_spec.engines.probe_watch import ProbeWatch
from edge_spec.engines.processor_time import processor_time
from edge_spec.engines.settings import ModelSettings
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree


class SlowModel(RoundingModel):
    """A model whose decodes take the seconds that a list says, over and over, on a clock of its own."""

    def __init__(self, *seconds: float, **values: Any) -> None:
        super().__init__(**values)
        self.now, self.n_decodes, self._seconds = 0.0, 0, seconds or (1.0,)

    def decode(self, tree: Tree) -> Logits:
        self.now += self._seconds[self.n_decodes % len(self._seconds)]
        self.n_decodes += 1
        return super().decode(tree)

    def clock(self) -> float:
        return self.now


def profile_of(settings: ModelSettings, **facts: str) -> Any:
    def of(widths: tuple[int, ...]) -> NumericsProfile:
        found = {"n_ctx": str(settings.n_ctx), "prefill": str(settings.prefill_chunk), "widths": str(widths[:1])}
        return NumericsProfile(engine="rounding", facts=tuple((facts | found).items()))

    return of


# --- time

CAREFUL = Capabilities(rollback=ANYWHERE, takes_trees=False, widths=(1,), max_rows=1, in_company=False)


@pytest.mark.long
@pytest.mark.parametrize("readings", [READINGS, OWN_READINGS])
@pytest.mark.parametrize("external", [False, True])
def test_a_probe_ends_in_time_with_all_that_it_would_find_or_with_one_row_at_a_time(
    readings: Readings, external: bool
) -> None:
    values: dict[str, Any] = {"readings": readings, "external": external}
    whole, all_of_it = SlowModel(), SlowModel()
    found = probe(whole, **values)
    for limit in range(1, whole.n_decodes + 20, 7):
        model = SlowModel()
        cut = probe(model, **values, limit_s=limit, clock=model.clock)
        assert model.n_past == 0
        if cut.cut_short_s:
            # Trees are tried in a few decodes that are not counted.
            assert limit < model.now <= limit + 1 + 3 * 3 * 2
            assert (cut.capabilities, cut.cut_short_s, set(cut.seconds) - {1}) == (CAREFUL, limit, set())
            assert model.capabilities.identity == "bitwise" and model.capabilities.padded(1) == 1
        else:
            assert cut.capabilities == found.capabilities
    assert probe(all_of_it, **values, limit_s=whole.n_decodes, clock=all_of_it.clock).cut_short_s == 0


def test_progress_comes_to_its_end_when_the_time_is_up() -> None:
    model, told = SlowModel(), list[tuple[int, int]]()
    probe(model, limit_s=200, clock=model.clock, on_probe=lambda *now: told.append(now))
    assert told[0][0] == 0 < told[1][0] < told[-2][0] < told[-1][0] == told[-1][1]
    # No hundredth is told twice, and hardly one is left out: a bar moves, and shows the time left.
    assert len(told) == len(set(told)) > 20


def test_a_model_that_goes_back_a_few_rows_only_keeps_what_was_found_of_that() -> None:
    class Recurrent(SlowModel):
        def rollback(self, n_past: int) -> None:
            super().rollback(n_past if n_past >= self.n_past - 3 else 0)

    model = Recurrent()
    assert probe(model, limit_s=5, clock=model.clock).capabilities.rollback == 3


# --- other programs


@pytest.mark.parametrize(
    ("seconds", "is_told"),
    [
        ((0.1,), False),
        ((0.1, 0.2, 0.3), False),
        # The first ones prepare something.
        ((9.0,) * 5 + (0.1,) * 295, False),
        # Too short for anybody to care.
        ((0.0001, 0.001), False),
        ((0.1, 0.1, 9.0), True),
        ((0.1, 0.9), True),
    ],
)
def test_it_is_told_once_that_decodes_take_many_times_as_long_as_they_could(
    seconds: tuple[float, ...], is_told: bool
) -> None:
    told: list[float] = []
    model = SlowModel(*seconds)
    watch = ProbeWatch(lambda done, total: None, 1000, on_busy=told.append, clock=model.clock, used=lambda: None)
    for _ in range(300):
        watch.decode(model, [1])
    assert len(told) == is_told
    assert all(times > 2 for times in told)


@pytest.mark.parametrize(("waits", "is_told"), [(0.0, False), (1.5, False), (6.0, True), (None, False)])
def test_it_is_told_that_threads_wait_for_cores_many_times_as_long_as_they_compute(
    waits: float | None, is_told: bool
) -> None:
    now, told = 0.0, list[float]()

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    watch = ProbeWatch(
        lambda done, total: None,
        1000,
        on_busy=told.append,
        clock=clock,
        used=lambda: None if waits is None else (now, now * waits),
    )
    for _ in range(500):
        watch.count(1)
    assert told == ([pytest.approx(1 + 6)] if is_told else [])


def test_threads_that_compute_are_seen_to_where_the_system_tells() -> None:
    before = processor_time()
    if before is None:
        pytest.skip("this system does not tell")
    begun = process_time()
    while process_time() < begun + 0.1:
        pass
    after = processor_time()
    assert after is not None and after[0] >= before[0] + 0.05 and after[1] >= before[1]


# --- what was found serves


def opened(folder: Path | None, facts: dict[str, str] | None = None, **values: Any) -> SlowModel:
    """Return a model that was probed once."""
    model = SlowModel(**values)
    of = profile_of(model.settings, **(facts or {}))
    model.profile = of(())
    probe_once(model, of, file="file", cache_dir=folder, on_probe=lambda done, total: None, can_shift=True)
    known = known_profile("file", model.settings, of, cache_dir=folder)
    assert known == (model.profile if folder is not None else None)
    return model


COVERED: list[dict[str, Any]] = [
    {"n_ctx": 4096},
    {"n_ctx": 300},
    {"n_ctx": 100},
    {"prefill_chunk": 128},
    {"prefill_chunk": 100, "n_ctx": 256, "max_rows": 8},
    {"max_rows": 4},
    {"n_threads": 3},
    {"held_experts": 2},
]


@pytest.mark.parametrize("values", COVERED)
def test_what_was_found_serves_settings_in_which_fewer_decodes_are_tried(
    values: dict[str, Any], tmp_path: Path
) -> None:
    def rows(n_rows: int, n_past: int, row: int) -> int:
        return n_rows > 6

    assert opened(tmp_path, n_ctx=600, rows=rows).n_decodes > 0
    served = opened(tmp_path, rows=rows, **{"n_ctx": 600} | values)
    anew = opened(None, rows=rows, **{"n_ctx": 600} | values)
    assert served.n_decodes == 0
    assert served.capabilities == anew.capabilities
    assert served.profile == anew.profile


@pytest.mark.parametrize(
    "values", [{"n_ctx": 350}, {"prefill_chunk": 200}, {"max_rows": 16}, {"max_rows": 3}, {"trees": False}]
)
def test_what_was_not_tried_is_found_out(values: dict[str, Any], tmp_path: Path) -> None:
    first: dict[str, Any] = {"n_ctx": 300, "prefill_chunk": 100, "max_rows": 8}
    opened(tmp_path, **first)
    assert opened(tmp_path, **first | values).n_decodes > 0
    assert opened(tmp_path, **first | values).n_decodes == opened(tmp_path, **first).n_decodes == 0


def test_what_rounds_has_results_of_its_own(tmp_path: Path) -> None:
    opened(tmp_path, {"threads": "1"})
    assert opened(tmp_path, {"threads": "2"}).n_decodes > 0
    assert opened(tmp_path, {"threads": "1"}).n_decodes == 0


def test_a_context_keeps_its_profile_when_a_deeper_one_finds_less(tmp_path: Path) -> None:
    def rows(n_rows: int, n_past: int, row: int) -> int:
        return n_rows == 1 and n_past >= 500

    short = opened(tmp_path, n_ctx=300, rows=rows)
    deep = opened(tmp_path, n_ctx=600, rows=rows)
    again = opened(tmp_path, n_ctx=300, rows=rows)
    assert (short.capabilities.widths[0], deep.capabilities.widths[0]) == (1, 2)
    assert (again.profile, again.n_decodes) == (short.profile, 0)


def test_chunks_below_the_largest_are_tried_before_what_was_found_serves_them(tmp_path: Path) -> None:
    class Prompted(SlowModel):
        """Leaves other cells where it reads between 40 and 70 tokens at once."""

        def prefill(self, tokens: Any) -> None:
            for token in tokens:
                self._cache.append(self._cell(self._cache, token, 40 <= len(tokens) < 70))

    assert probe(Prompted()).capabilities.reuse_step == 0


# --- what was cut short


def test_a_probe_that_was_cut_short_is_tried_again_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    ends_at = 200.0

    def limited(model: RoundingModel, *, limit_s: float, **values: Any) -> ProbeResult:
        limits.append(limit_s)
        clock = count(step=0.25)
        return probe(model, **values, limit_s=limit_s if limit_s < ends_at else 1e9, clock=lambda: next(clock))

    monkeypatch.setattr("edge_spec.engines.probe_records.probe", limited)
    monkeypatch.setattr("edge_spec.engines.probe_records._LIMIT_S", 60.0)
    identities = [opened_cut(tmp_path) for _ in range(4)]
    assert limits == [60, 120, 240]
    assert identities == [(1,), (1,), (1, 2, 3, 4, 5, 6, 7, 8, 12, 16), (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)]


def opened_cut(folder: Path) -> tuple[int, ...]:
    """Return the widths of a model that was probed once; its profile is known only if that came to its end."""
    model = RoundingModel()
    of = profile_of(model.settings)
    model.profile = of(())
    found = probe_once(model, of, file="file", cache_dir=folder, on_probe=lambda done, total: None, can_shift=True)
    known = known_profile("file", model.settings, of, cache_dir=folder)
    assert known == (None if found.cut_short_s else model.profile)
    # What is not known to be alike serves where it would be computed in the same way.
    assert model.capabilities.reuse_step == (512 if found.cut_short_s else 1)
    return found.capabilities.widths


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"results": 7}', b'{"results": [7, {}, null]}', b'{"cut_short_s": []}']
)
def test_damaged_results_are_found_anew(damage: bytes, tmp_path: Path) -> None:
    opened(tmp_path)
    (kept,) = (tmp_path / "probes").iterdir()
    kept.write_bytes(damage)
    assert opened(tmp_path).n_decodes > 0
    assert opened(tmp_path).n_decodes == 0
