"""Laws of sizes: they are read as people write them, and printed so that they are read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import SettingsError
from edge_spec.memory import (
    format_size,
    parse_size,
)
from edge_spec.memory.budget import parse_memory


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2GiB", 2 << 30),
        ("2GB", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("4096", 4096),
        (4096, 4096),
        ("7 k", 7 << 10),
        (" 1tb ", 10**12),
        ("0.5MiB", 1 << 19),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize(
    "text",
    ["0", "0GiB", "-1", "banana", "", "1e9", "GiB", "2 GiB 3", "1.2.3", "²", 0, -5, True, "9" * 30, "9999999tib"],
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(SettingsError, match=r"^memory is"):
        parse_size(text)


@pytest.mark.parametrize(("memory", "hint"), [("400", "write 400MiB"), (400, "write 400MiB"), ("9k", "write 2GiB")])
def test_a_budget_without_its_unit_is_not_taken_for_bytes(memory: str | int, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        parse_memory(memory)
    assert parse_memory("400MiB") == 400 << 20


@given(st.integers(1, 1 << 50))
def test_printed_sizes_are_never_too_small(n_bytes: int) -> None:
    assert parse_size(format_size(n_bytes).replace(",", "")) >= n_bytes - (n_bytes >> 5)
    assert parse_size(f"{n_bytes}") == n_bytes
