"""Laws of what a process holds, as the operating system counts it."""

from __future__ import annotations

from edge_spec.memory import (
    Usage,
    usage,
)

MIB = 1 << 20


def test_usage_is_read_from_what_linux_writes() -> None:
    text = (
        "5500-7fff ---p 0 00:00 0 [rollup]\nRss: 40 kB\nPrivate_Clean: 3 kB\nPrivate_Dirty: 20 kB\nAnonymous: 18 kB\n"
    )
    assert usage(lambda path: text) == Usage(resident_bytes=40 << 10, unique_bytes=23 << 10, anonymous_bytes=18 << 10)
    for damaged in ("", "Rss: many kB\n", "Rss: 4 kB\n"):
        found = usage(lambda path, damaged=damaged: damaged)
        assert found.resident_bytes >= found.unique_bytes > 0


def test_memory_that_is_touched_is_counted() -> None:
    before = usage()
    # What other tests left behind may go meanwhile.
    touched = bytearray(b"\1") * (256 * MIB)
    after = usage()
    assert after.anonymous_bytes - before.anonymous_bytes >= len(touched) * 9 // 10
    assert after.resident_bytes >= after.unique_bytes
