"""Laws of patience: down at once but one step at a time, up only after a while of plenty."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.memory.device import Limit, Readings
from edge_spec.memory.pressure import Patience, PressureReading, PressureWatch, memory_stall, system_watch
from edge_spec.memory.usage import resident_bytes, usage

LOW = 100
PLENTY = 2 * LOW + 50


class World:
    """A clock, a memory, and so many steps that each give some of it back."""

    def __init__(self, n_steps: int, *, fails: bool = False) -> None:
        self.now = 0.0
        self.available = 1000
        self.stalled: float | None = None
        self.left: int | None = None
        self.n_down = 0
        self.log: list[str] = []
        self._n_steps = n_steps
        self._fails = fails
        self._patience = Patience(lambda: self.now, patience_s=20, settle_s=1)
        self._watch = PressureWatch(self.look, low_bytes=LOW, interval_s=0.5, clock=lambda: self.now)

    def look(self) -> PressureReading:
        return PressureReading(available_bytes=self.available, stalled_percent=self.stalled, left_bytes=self.left)

    def check(self) -> None:
        seen = self._watch.scarcity()
        if seen is None:
            return
        if self._watch.is_scarce(seen):
            if self._patience.may_step_down() and self.n_down < self._n_steps:
                self.n_down += 1
                self.log.append(f"down to {self.n_down}")
                self._patience.stepped_down()
        elif self._patience.may_step_up(self.n_down > 0 and self._watch.has_room(seen, 50)):
            self.n_down -= not self._fails
            self.log.append(f"up to {self.n_down}")
            self._patience.stepped_up(worked=not self._fails)

    def wait(self, seconds: float, available: int) -> None:
        self.available = available
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.check()


def test_while_memory_is_scarce_it_goes_down_step_by_step() -> None:
    world = World(3)
    world.wait(0.5, available=LOW - 1)
    assert world.log == ["down to 1"]
    world.wait(10, available=LOW - 1)
    assert world.log == ["down to 1", "down to 2", "down to 3"]


def test_it_goes_up_only_after_a_while_of_plenty() -> None:
    world = World(3)
    world.wait(5, available=LOW - 1)
    world.log.clear()
    world.wait(15, available=PLENTY)
    assert world.log == []
    world.wait(200, available=PLENTY)
    assert world.log == ["up to 2", "up to 1", "up to 0"]


def test_between_scarce_and_plenty_nothing_happens() -> None:
    world = World(3)
    world.wait(1, available=LOW - 1)
    world.log.clear()
    for available in (LOW, 2 * LOW, PLENTY - 1):
        world.wait(500, available=available)
    assert world.log == []


def test_a_while_of_plenty_that_is_interrupted_begins_again() -> None:
    world = World(1)
    world.wait(1, available=LOW - 1)
    world.log.clear()
    for _ in range(20):
        world.wait(15, available=PLENTY)
        world.wait(1, available=LOW)
    assert world.log == []


def test_a_system_that_thrashes_is_scarce_whatever_is_available() -> None:
    world = World(2)
    world.stalled = 15.0
    world.wait(1, available=100 * LOW)
    assert world.log == ["down to 1"]
    world.stalled = 5.0
    world.wait(500, available=100 * LOW)
    assert world.log == ["down to 1"]


def test_who_holds_more_than_the_budget_is_scarce_whatever_is_available() -> None:
    world = World(9)
    world.left = -1
    world.wait(1, available=100 * LOW)
    assert world.log == ["down to 1"]
    # Exactly the budget may be held, and a step up has to fit it.
    for left in (0, 49):
        world.left = left
        world.wait(500, available=100 * LOW)
        assert world.log == ["down to 1"]
    world.left = 50
    world.wait(500, available=100 * LOW)
    assert world.log == ["down to 1", "up to 0"]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("total", "available", "stalled", "budget", "left", "scarce"),
    [
        (4096, 1024, None, None, None, False),
        (4096, 1024, 0.0, 70 * MIB - 1, -1, True),
        (4096, 1024, 0.0, 70 * MIB, 0, False),
        # A 64th of the memory is low, but never less than 8 MiB.
        (4096, 64, 0.0, None, None, False),
        (4096, 63, 0.0, None, None, True),
        (256, 7, 0.0, None, None, True),
        (256, 8, 0.0, None, None, False),
        (4096, 1024, 90.0, None, None, True),
    ],
)
def test_the_watch_on_this_computer_looks_at_it_and_at_this_process(
    total: int, available: int, stalled: float | None, budget: int | None, left: int | None, scarce: bool
) -> None:
    ram = Limit(total_bytes=total * MIB, available_bytes=available * MIB)
    readings = Readings(ram=lambda: ram, text=lambda path: None)
    watch = system_watch(budget, resident=lambda: 70 * MIB, readings=readings, stall=lambda: stalled)
    seen = watch.scarcity()
    assert seen == PressureReading(available_bytes=available * MIB, stalled_percent=stalled, left_bytes=left)
    assert watch.is_scarce(seen) == scarce


def test_what_this_process_holds_is_read_quickly_and_alike() -> None:
    assert resident_bytes() == pytest.approx(usage().resident_bytes, rel=0.05)
    texts = {"/proc/self/statm": "9000 512 20 1 0 800 0\n"}
    assert resident_bytes(texts.get) % 512 == 0
    assert resident_bytes(texts.get) > 0
    rollup = {"/proc/self/smaps_rollup": "Rss: 40 kB\nPrivate_Clean: 3 kB\nPrivate_Dirty: 20 kB\nAnonymous: 18 kB\n"}
    assert resident_bytes(rollup.get) == 40 << 10


def test_who_must_step_down_again_soon_waits_twice_as_long() -> None:
    world = World(1)
    times = []
    for _ in range(4):
        world.wait(1, available=LOW - 1)
        start = world.now
        while world.n_down:
            world.wait(0.5, available=10 * LOW)
        times.append(world.now - start)
    assert [round(time / times[0]) for time in times] == [1, 2, 4, 8]


def test_a_step_up_that_fails_is_tried_again_after_twice_as_long() -> None:
    world = World(1, fails=True)
    world.wait(1, available=LOW - 1)
    tries = []
    for _ in range(3):
        start, n = world.now, len(world.log)
        while len(world.log) == n:
            world.wait(0.5, available=1 << 30)
        tries.append(world.now - start)
    assert world.n_down == 1
    assert [round(time / tries[0]) for time in tries] == [1, 2, 4]


@given(readings=st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 400)), max_size=60))
def test_steps_are_single_and_each_has_its_reason(readings: list[tuple[float, int]]) -> None:
    world = World(5)
    before = 0
    for seconds, available in readings:
        world.now += seconds
        world.available = available
        world.check()
        assert abs(world.n_down - before) <= 1
        assert world.n_down <= before or available < LOW
        assert world.n_down >= before or available >= PLENTY
        before = world.n_down


OF_THE_MACHINE = {
    "proc/pressure/memory": "some avg10=1.50 avg60=0.00 total=5\n",
    "sys/fs/cgroup/unified/memory.pressure": "some avg10=1.50 avg60=0.00 total=5\n",
}
LIMITED = {
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1048576",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        ({"proc/pressure/memory": "some avg10=1.50 avg60=0.00 total=5\nfull avg10=0.1 avg60=0 total=0\n"}, 1.5),
        ({"proc/pressure/memory": "nonsense"}, None),
        (
            {
                "proc/self/cgroup": "0::/user/app\n",
                "sys/fs/cgroup/user/app/memory.pressure": "some avg10=22.00 avg60=0.00 total=5\n",
                "proc/pressure/memory": "some avg10=1.50 avg60=0.00 total=5\n",
            },
            22.0,
        ),
        # Version 1 limits memory and keeps no figures of a group, unless version 2 has the same one besides.
        ({"proc/self/cgroup": "4:memory:/box\n0::/\n", **LIMITED, **OF_THE_MACHINE}, None),
        ({"proc/self/cgroup": "4:memory:/box\n", **LIMITED, **OF_THE_MACHINE}, None),
        ({"proc/self/cgroup": "4:memory:/\n0::/\n", **OF_THE_MACHINE}, 1.5),
        ({"proc/self/cgroup": "4:memory:/other\n0::/\n", **LIMITED, **OF_THE_MACHINE}, 1.5),
        (
            {
                "proc/self/cgroup": "4:memory:/box\n0::/box\n",
                "sys/fs/cgroup/unified/box/memory.pressure": "some avg10=22.00 avg60=0.00 total=5\n",
                **LIMITED,
                **OF_THE_MACHINE,
            },
            22.0,
        ),
        ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/memory.max": "1048576", **OF_THE_MACHINE}, None),
    ],
)
def test_stalls_are_read_where_the_system_keeps_them(
    files: dict[str, str], wanted: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_stall(tmp_path) == wanted
