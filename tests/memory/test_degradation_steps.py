"""Laws of the ladder: one step at a time, in order, back up with patience."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.controller.steps import Ladder, Rung
from edge_spec.memory.pressure import PressureWatch, Squeeze, memory_stall

LOW = 100


class World:
    """A clock, a memory, and rungs that give some of it back."""

    def __init__(
        self,
        n_rungs: int,
        *,
        empty: frozenset[int] = frozenset(),
        broken: frozenset[int] = frozenset(),
        for_good: int = 99,
        lossy: int = 99,
    ) -> None:
        self.now = 0.0
        self.available = 1000
        self.stalled: float | None = None
        self.log: list[str] = []
        self.said: list[str] = []

        def rung(place: int) -> Rung:
            def down() -> bool:
                self.log.append(f"down {place}")
                return place not in empty

            def up() -> bool:
                self.log.append(f"up {place}")
                return place not in broken

            return Rung(
                name=f"rung {place}",
                down=down,
                up=up if place < for_good else None,
                n_bytes=lambda: 50,
                lossless=lambda: place < lossy,
            )

        self.ladder = Ladder(
            [rung(place) for place in range(n_rungs)],
            PressureWatch(
                lambda: Squeeze(available_bytes=self.available, stalled_percent=self.stalled),
                low_bytes=LOW,
                interval_s=0.5,
                clock=lambda: self.now,
            ),
            on_step=lambda sentence, lossless: self.said.append(sentence),
            patience_s=20,
            settle_s=1,
            clock=lambda: self.now,
        )

    def wait(self, seconds: float, available: int, *, lossless_only: bool = False) -> None:
        self.available = available
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.ladder.check(lossless_only=lossless_only)


def test_while_memory_is_scarce_it_goes_down_rung_by_rung() -> None:
    world = World(3)
    world.wait(0.5, available=LOW - 1)
    assert world.ladder.degradations == ("rung 0",)
    world.wait(10, available=LOW - 1)
    assert world.log == ["down 0", "down 1", "down 2"]
    assert world.said[0] == "memory is scarce: rung 0"


def test_it_climbs_in_the_opposite_order_and_only_after_a_while_of_plenty() -> None:
    world = World(3)
    world.wait(5, available=LOW - 1)
    world.log.clear()
    world.wait(15, available=2 * LOW + 50)
    assert world.log == []
    world.wait(200, available=2 * LOW + 50)
    assert world.log == ["up 2", "up 1", "up 0"]
    assert world.ladder.degradations == ()


def test_between_scarce_and_plenty_nothing_happens() -> None:
    world = World(3)
    world.wait(1, available=LOW - 1)
    world.log.clear()
    for available in (LOW, 2 * LOW, 2 * LOW + 49):
        world.wait(500, available=available)
    assert world.log == []


def test_a_system_that_thrashes_is_scarce_whatever_is_available() -> None:
    world = World(2)
    world.stalled = 15.0
    world.wait(1, available=100 * LOW)
    assert world.log == ["down 0"]
    world.stalled = 5.0
    world.wait(500, available=100 * LOW)
    assert world.log == ["down 0"]


def test_with_nobody_to_tell_only_lossless_rungs_are_taken() -> None:
    world = World(4, empty=frozenset({1}), for_good=2, lossy=2)
    world.wait(50, available=LOW - 1, lossless_only=True)
    assert world.ladder.degradations == ("rung 0",)
    assert not {"down 2", "down 3"} & set(world.log)
    world.wait(500, available=1 << 30, lossless_only=True)
    assert world.ladder.degradations == ()
    # With somebody to tell it goes on where it was.
    world.wait(5, available=LOW - 1, lossless_only=True)
    world.wait(5, available=LOW - 1)
    assert world.ladder.degradations == ("rung 0", "rung 2", "rung 3")


def test_who_must_step_down_again_soon_waits_twice_as_long() -> None:
    world = World(1)
    times = []
    for _ in range(4):
        world.wait(1, available=LOW - 1)
        start = world.now
        while world.ladder.degradations:
            world.wait(0.5, available=10 * LOW)
        times.append(world.now - start)
    assert [round(time / times[0]) for time in times] == [1, 2, 4, 8]


def test_rungs_with_nothing_to_give_are_passed_and_those_for_good_are_not_climbed() -> None:
    world = World(4, empty=frozenset({0, 2}), for_good=3)
    world.wait(0.5, available=LOW - 1)
    assert world.ladder.degradations == ("rung 1",)
    world.wait(5, available=LOW - 1)
    assert world.ladder.degradations == ("rung 1", "rung 3")
    world.wait(1000, available=1 << 30)
    assert world.ladder.degradations == ("rung 3",)


def test_what_comes_back_goes_first_when_memory_is_scarce_again() -> None:
    world = World(5, for_good=2)
    world.wait(3, available=LOW - 1)
    assert world.ladder.degradations == ("rung 0", "rung 1", "rung 2")
    world.wait(200, available=1 << 30)
    assert world.ladder.degradations == ("rung 2",)
    world.log.clear()
    world.wait(3, available=LOW - 1)
    assert world.log == ["down 0", "down 1", "down 3"]
    assert world.ladder.degradations == ("rung 0", "rung 1", "rung 2", "rung 3")


def test_nothing_that_changes_the_text_comes_back_with_nobody_to_tell() -> None:
    world = World(1, lossy=0)
    world.wait(1, available=LOW - 1)
    world.wait(1000, available=1 << 30, lossless_only=True)
    assert world.ladder.degradations == ("rung 0",)
    world.wait(1000, available=1 << 30)
    assert world.ladder.degradations == ()


def test_a_climb_that_fails_is_tried_again_after_twice_as_long() -> None:
    world = World(1, broken=frozenset({0}))
    world.wait(1, available=LOW - 1)
    tries = []
    for _ in range(3):
        start, n = world.now, len(world.log)
        while len(world.log) == n:
            world.wait(0.5, available=1 << 30)
        tries.append(world.now - start)
    assert world.ladder.degradations == ("rung 0",)
    assert [round(time / tries[0]) for time in tries] == [1, 2, 4]


@given(
    readings=st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 400)), max_size=60),
    empty=st.frozensets(st.integers(0, 4)),
)
def test_what_is_given_up_is_always_the_first_rungs_that_had_something(
    readings: list[tuple[float, int]], empty: frozenset[int]
) -> None:
    world = World(5, empty=empty)
    full = [f"rung {place}" for place in range(5) if place not in empty]
    before = 0
    for seconds, available in readings:
        world.now += seconds
        world.available = available
        world.ladder.check()
        degradations = list(world.ladder.degradations)
        assert degradations == full[: len(degradations)]
        assert abs(len(degradations) - before) <= 1
        assert len(degradations) <= before or available < LOW
        assert len(degradations) >= before or available >= 2 * LOW + 50
        before = len(degradations)


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
