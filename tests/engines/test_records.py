"""Laws of what is kept of models on this device: whole or not there, and nothing half is left beside it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from edge_spec.engines.records import read_record, write_record
from edge_spec.models.beside import beside


def test_a_disk_without_room_keeps_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    write_record(tmp_path / "probes" / "a.json", {"a": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for _ in range(3):
            write_record(tmp_path / "probes" / "a.json", {"a": 2})
            write_record(tmp_path / "probes" / "b.json", {"b": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (tmp_path / "probes").iterdir()] == ["a.json"]
    assert read_record(tmp_path / "probes" / "a.json") == {"a": 1}


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    begin = beside(tmp_path / "a.json", ".").name
    old, new = tmp_path / f"{begin}1234abcd.part", tmp_path / f"{begin}5678efgh.part"
    for path, age_s in ((old, 4000), (new, 1000)):
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    write_record(tmp_path / "a.json", {"a": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", new.name}
