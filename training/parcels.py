"""Folders as a few files of limited size, for a machine that takes and gives back only so much at a time.

``python -m edge_spec.training.parcels pack FILE... --into FOLDER`` and ``... unpack FOLDER --into FOLDER``. Token
ids are worth compressing (``--squeeze``), trained weights are not.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from edge_spec.errors import EdgeSpecError, ModelFileError

__all__ = ["main", "pack", "unpack"]

_MAX_BYTES = 15 << 20
# Token ids have two bytes: matches and literals are aligned to them.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
# Weights hardly shrink: this is for the sums that tell damaged parts.
_QUICK = [{"id": lzma.FILTER_LZMA2, "preset": 0}]


class _Parts:
    """Writes files of at most ``max_bytes`` in a row."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._most_bytes = folder, max_bytes
        self._paths: list[Path] = []
        self._file: BinaryIO | None = None
        self._left = 0

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            if self._left == 0:
                self.close()
                self._paths.append(self._folder / f"parcel.{len(self._paths):03d}")
                self._file, self._left = self._paths[-1].open("wb"), self._most_bytes
            assert self._file is not None
            some = rest[: self._left]
            self._file.write(some)
            self._left -= len(some)
            rest = rest[len(some) :]
        return len(data)

    def close(self) -> list[Path]:
        if self._file is not None:
            self._file.close()
        return self._paths


class _Joined:
    """Reads files as if they were one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._pieces = self._read(paths)
        self._rest = b""

    @staticmethod
    def _read(paths: Sequence[Path]) -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as file:
                while some := file.read(1 << 20):
                    yield some

    def read(self, n: int = -1) -> bytes:
        while n < 0 or len(self._rest) < n:
            some = next(self._pieces, b"")
            if not some:
                break
            self._rest += some
        n = len(self._rest) if n < 0 else n
        out, self._rest = self._rest[:n], self._rest[n:]
        return out


def pack(paths: Sequence[Path], folder: Path, *, squeeze: bool, max_bytes: int = _MAX_BYTES) -> list[Path]:
    """Put files and folders, by their own names, into ``parcel.000`` and so on; returns these.

    Raises:
        ModelFileError: a path is not there, or two have the same name.
    """
    for path in paths:
        if not path.exists():
            raise ModelFileError(f"there is no {path}", hint="give files and folders that exist")
    if len({path.name for path in paths}) < len(paths):
        raise ModelFileError("two of the paths have the same name", hint="pack them one after the other")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("parcel.*"):
        old.unlink()
    parts = _Parts(folder, max_bytes)
    with (
        lzma.LZMAFile(
            cast(BinaryIO, parts), "w", format=lzma.FORMAT_XZ, filters=_FILTERS if squeeze else _QUICK
        ) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|") as archive,
    ):
        for path in paths:
            archive.add(path, path.name)
    return parts.close()


def unpack(parcels: Path, folder: Path) -> None:
    """Put back what ``pack`` has made.

    Raises:
        ModelFileError: parts are missing or damaged.
    """
    paths = sorted(parcels.glob("parcel.*"))
    numbers = [path.suffix for path in paths]
    if not paths or numbers != [f".{number:03d}" for number in range(len(paths))]:
        raise ModelFileError(f"{parcels} holds no whole set of parcels", hint="bring all of them")
    try:
        with (
            lzma.LZMAFile(cast(BinaryIO, _Joined(paths))) as squeezed,
            tarfile.open(fileobj=squeezed, mode="r|") as archive,
        ):
            archive.extractall(folder, filter="data")
            while squeezed.read(1 << 20):  # to the very end: it is there that the sums are checked
                pass
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise ModelFileError(f"the parcels in {parcels} are damaged ({error})", hint="bring them again") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack or unpack; returns 0, or 1 for an error."""
    parser = argparse.ArgumentParser(prog="python -m edge_spec.training.parcels", description=__doc__)
    parser.add_argument("verb", choices=("pack", "unpack"))
    parser.add_argument("paths", type=Path, nargs="+", help="what to pack, or the folder of the parcels")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--squeeze", action="store_true", help="compress well, and slowly")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "pack":
            for path in pack(given.paths, given.into, squeeze=given.squeeze):
                print(f"{path}: {path.stat().st_size:,} bytes")
        else:
            unpack(given.paths[0], given.into)
    except EdgeSpecError as error:
        print(f"parcels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
