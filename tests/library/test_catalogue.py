"""Laws of the catalogue: every entry is of the right form, and holds nothing that only the hub or a device can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_spec.errors import SettingsError
from edge_spec.library.wanted import read_catalogue, wanted

GOOD = '[own]\ntarget = { repo = "a/b", file = "*.gguf" }\nread = "here"\ntried = true\n'


def test_every_entry_of_the_package_can_be_asked_for() -> None:
    catalogue = read_catalogue()
    assert len(catalogue) >= 5
    for name, entry in catalogue.items():
        assert wanted(name) == entry
        assert "target" in entry.sources and entry.read
        assert entry.name == name
        # None has been run by the project yet, and each says so.
        assert name in entry.note


def test_a_users_own_entries_are_added_and_come_first(tmp_path: Path) -> None:
    own = tmp_path / "catalogue.toml"
    own.write_text(GOOD + GOOD.replace("own", "qwen3-4b"))
    found = read_catalogue(own)
    assert found["own"].sources["target"].repo == "a/b"
    assert found["qwen3-4b"].sources.keys() == {"target"}
    assert "llama-3.2-3b" in found
    assert read_catalogue(tmp_path / "none.toml") == read_catalogue()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "cannot be read"),
        ("own = 1", "needs target, read and tried"),
        (GOOD.replace("tried = true", ""), "needs target, read and tried"),
        (GOOD.replace("true", "1"), "true or false as tried"),
        (GOOD.replace('"here"', '""'), "a text as read"),
        (GOOD + "size = 3\n", "unknown key 'size'"),
        (GOOD.replace("a/b", "../../etc"), "not org/repo"),
        (GOOD.replace("*.gguf", "*.bin"), "ends in .gguf"),
        (GOOD.replace(', file = "*.gguf"', ""), "needs repo and file as target"),
        (GOOD.replace("own", '"../own"'), "has a name"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    own = tmp_path / "catalogue.toml"
    own.write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        read_catalogue(own)
    assert "catalogue.toml" in str(caught.value)
