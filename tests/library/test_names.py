"""Laws of what a hub says: its names, hashes and sizes reach nothing outside of a model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_hub import COMMIT, FakeHub, client

from edge_spec.errors import DownloadError, SettingsError
from edge_spec.library.download import RemoteFile
from edge_spec.library.finding import Pull, find
from edge_spec.library.names import is_plain
from edge_spec.library.previews import preview
from edge_spec.library.pulling import pull
from edge_spec.library.wanted import wanted

HASH = "0123456789abcdef" * 4
STRANGE = [
    "...gguf",
    ".gguf",
    "..gguf",
    ".partial.gguf",
    "-m.gguf",
    "x;touch pwned;$(id)-Q4_0.gguf",
    "a" * 101 + ".gguf",
    "größe.gguf",
]


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """Return what a folder holds: the content of files, None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("a", "_", "0", "Qwen3-4B-Q4_K_M", "a..b", "a" * 100)),
        *((name, False) for name in ("", ".", "..", ".a", "-a", "a/b", "a\\b", "a b", "a\n", "ä", "a\x1b", "a" * 101)),
    ],
)
def test_a_plain_name_is_one_everywhere(name: str, is_one: bool, tmp_path: Path) -> None:
    assert is_plain(name) is is_one
    if is_one:
        Pull(name=name, files={})
    else:
        with pytest.raises(SettingsError, match="cannot be the name of a model; give it another one with --as NAME"):
            Pull(name=name, files={})


@pytest.mark.parametrize(
    "said",
    [
        *({"sha256": value} for value in ("../../victim", "/victim", HASH[1:], HASH + "\n", HASH.upper(), "\0", "..")),
        *({"commit": value} for value in ("../../victim", "main", HASH, COMMIT[1:], COMMIT.upper(), "None")),
        *({"n_bytes": value} for value in (-1, 1 << 64, 10**4000)),
        *({"path": value} for value in ("a\x1b]0;x\x07.gguf", "a\0.gguf", "a\ud800.gguf", "a\u202e.gguf", "a\n.gguf")),
    ],
)
def test_a_file_that_cannot_be_is_refused(said: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"repo": "org/a", "commit": COMMIT, "path": "a.gguf", "n_bytes": 1, "sha256": HASH}
    RemoteFile(**fields)
    RemoteFile(**{**fields, "sha256": "", "commit": ""})
    with pytest.raises(DownloadError, match=r"^org/a states impossible values: 'a.*gguf' has ") as caught:
        RemoteFile(**{**fields, **said})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["../../../victim", "/{}/victim", "\0"])
@pytest.mark.parametrize("field", ["sha256", "sha"])
def test_a_lying_list_writes_nothing(hub: FakeHub, tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "part").write_bytes(b"precious")
    before = everything_in(tmp_path)

    def lie(listed: dict[str, Any]) -> None:
        place = listed if field == "sha" else listed["siblings"][0]["lfs"]
        place[field] = value.format(tmp_path)

    hub.lie = lie
    with pytest.raises(DownloadError, match="hexadecimal digits"):
        pull(find(wanted("org/small-GGUF"), client(hub)), client(hub), tmp_path / "in" / "models", {})
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_gives_a_model_no_name_but_gets_one(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    hub.repositories = {"org/strange": {name: models["target"]}}
    with pytest.raises(SettingsError, match="--as NAME"):
        find(wanted("org/strange"), client(hub))
    what = find(wanted("org/strange"), client(hub), "mine")
    looked = preview(what, client(hub), tmp_path / "previews")
    assert looked == {"target": tmp_path / "previews" / "target" / "target.gguf"}
    pull(what, client(hub), tmp_path / "models", {})
    assert everything_in(tmp_path / "models") == {
        ".partial": None,
        "mine": None,
        "mine/family.json": b'{"target": "target.gguf"}',
        "mine/target.gguf": models["target"],
    }


def test_parts_with_a_strange_name_stay_parts_of_each_other(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path
) -> None:
    parts = {f"-m-0000{n}-of-00002.gguf": content for n, content in enumerate(models.values(), 1)}
    hub.repositories = {"org/strange": parts}
    place = pull(find(wanted("org/strange"), client(hub), "mine"), client(hub), tmp_path, {})
    assert sorted(path.name for path in place.iterdir()) == [
        "family.json",
        "target-00001-of-00002.gguf",
        "target-00002-of-00002.gguf",
    ]
