"""The hub that models are fetched from: what a repository holds, a file's header, and the file itself.

Requests go through ``huggingface_hub``, so that its tokens, mirrors (``HF_ENDPOINT``), proxies and offline mode hold
here as well. The download is our own: that library keeps nothing of an interrupted one.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_spec.errors import DiskFull, DownloadError, EdgeSpecError, ModelNotFound

__all__ = ["Hub", "RemoteFile", "sha256_of"]

_TRIES = 6
_MOST_WAIT_S = 60.0
_TIMEOUT_S = 30.0
_BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which another attempt may work."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the hub.

    Attributes:
        repo, commit, path: where it is.
        n_bytes: its size.
        sha256: of its content, as the hub says; empty for small files, of which it says none.
    """

    repo: str
    commit: str
    path: str
    n_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """Without folders."""
        return Path(self.path).name


class Hub:
    """A hub.

    Args:
        endpoint: its address; the public one, or that of ``HF_ENDPOINT``, if None.
        pause: waits so many seconds before another attempt.

    Raises:
        EdgeSpecError: ``huggingface_hub`` is not installed.
    """

    def __init__(self, *, endpoint: str | None = None, pause: Callable[[float], None] = time.sleep) -> None:
        try:
            import huggingface_hub
        except ImportError:
            raise EdgeSpecError("huggingface_hub is not installed", hint='run: pip install "edge-spec[hub]"') from None
        self._library: Any = huggingface_hub
        self._endpoint = endpoint
        self._pause = pause

    def files(self, repo: str, revision: str = "main") -> list[RemoteFile]:
        """What a repository holds.

        Raises:
            ModelNotFound: there is none, or it needs a token. DownloadError: the hub cannot be asked.
        """
        with _errors_of_the_hub(repo):
            api = self._library.HfApi(endpoint=self._endpoint)
            found = api.model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
            return [
                RemoteFile(
                    repo=repo,
                    commit=str(found.sha),
                    path=str(each.rfilename),
                    n_bytes=int(each.size or 0),
                    sha256=str(each.lfs.sha256) if each.lfs else "",
                )
                for each in found.siblings or ()
            ]

    def read(self, file: RemoteFile, first: int, last: int) -> bytes:
        """Some bytes of a file, ``[last - first]``, fewer at its end.

        Raises:
            ModelNotFound, DownloadError: they cannot be had.
        """
        found = bytearray()
        self._stream(file, first, min(last, file.n_bytes), found.extend)
        return bytes(found)

    def fetch(self, file: RemoteFile, path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> None:
        """Write a whole file to ``path``, which may hold the beginning of it already, and check it.

        Args:
            on_bytes: told how many bytes there are.

        Raises:
            ModelNotFound, DownloadError: it cannot be had. DiskFull: there is no room for it. ``path`` then holds what
                has come so far, unless that is damaged.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as part:
            held = part.tell()
            if held > file.n_bytes:
                part.truncate(0)
                held = 0
            room = shutil.disk_usage(path.parent).free
            if room < file.n_bytes - held:
                raise DiskFull(
                    f"{file.name} in {path.parent}",
                    needed_bytes=file.n_bytes - held,
                    available_bytes=room,
                    hint="free some space, or choose another folder with --model-dir",
                )

            def write(chunk: bytes) -> None:
                part.write(chunk)
                on_bytes(part.tell())

            if held < file.n_bytes:
                self._stream(file, held, file.n_bytes, write)
        if path.stat().st_size != file.n_bytes or (file.sha256 and sha256_of(path) != file.sha256):
            path.unlink()
            raise DownloadError(
                f"what came as {file.name} is not what the hub has (its checksum differs)", hint="pull it again"
            )

    def _stream(self, file: RemoteFile, first: int, last: int, take: Callable[[bytes], object]) -> None:
        """Hand on the bytes of a range in their order; after a cut it continues there."""
        at, left = first, _TRIES
        while at < last:
            before, wait_s = at, min(_MOST_WAIT_S, 2.0 ** (_TRIES - left) / 2)
            try:
                for chunk in self._chunks(file, at, last):
                    take(chunk)
                    at += len(chunk)
                why = f"the connection ended after {at:,} of {last:,} bytes"
            except _Busy as busy:
                why, wait_s = busy.why, min(_MOST_WAIT_S, max(wait_s, busy.wait_s))
            if at >= last:
                return
            left = _TRIES if at > before else left - 1
            if left <= 0:
                raise DownloadError(
                    f"{file.name} cannot be fetched: {why}", hint="the same command continues where it ended"
                )
            self._pause(wait_s)

    def _chunks(self, file: RemoteFile, first: int, last: int) -> Iterator[bytes]:
        """The bytes of a range, until it is complete or the connection ends.

        Raises:
            _Busy: it is worth another attempt. ModelNotFound, DownloadError: it is not.
        """
        address = self._library.hf_hub_url(file.repo, file.path, revision=file.commit, endpoint=self._endpoint)
        headers = self._library.utils.build_hf_headers()
        # Compressed, ranges would be of other bytes.
        headers |= {"Range": f"bytes={first}-{last - 1}", "Accept-Encoding": "identity"}
        client = self._library.utils.get_session()
        with (
            _errors_of_the_hub(file.repo, busy=True),
            client.stream("GET", address, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S) as response,
        ):
            status = int(response.status_code)
            if status in _BUSY:
                raise _Busy(f"the hub answers {status}", _seconds(response.headers.get("Retry-After", "")))
            if status not in (200, 206):
                self._library.utils.hf_raise_for_status(response)
                raise DownloadError(f"the hub answers {status} for {file.name}", hint="try again later")
            # A server that knows no ranges begins at the beginning.
            place = _begin(response.headers.get("Content-Range", "")) if status == 206 else 0
            if not 0 <= place <= first:
                raise DownloadError(f"the hub sends another part of {file.name}", hint="try again later")
            # As they come: what is gathered into larger pieces would be lost with the connection.
            for chunk in response.iter_bytes():
                kept = chunk[max(0, first - place) : last - place]
                place += len(chunk)
                if kept:
                    yield kept
                if place >= last:
                    return


class _Busy(Exception):
    """It may work later.

    Attributes:
        why: a clause.
        wait_s: how long the hub asks to wait.
    """

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


def sha256_of(path: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _begin(content_range: str) -> int:
    found = re.match(r"bytes (\d+)-", content_range)
    return int(found[1]) if found else -1


def _seconds(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) else 0.0


@contextmanager
def _errors_of_the_hub(repo: str, *, busy: bool = False) -> Iterator[None]:
    """Turn what the library raises into our errors.

    Args:
        busy: a connection that fails is worth another attempt, and ``_Busy`` says so.
    """
    from huggingface_hub import errors

    # The library's HTTP client differs from version to version; all its errors have this one above them.
    broken = errors.HfHubHTTPError.__mro__[1]
    try:
        yield
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise ModelNotFound(
            f"the hub does not hand out {repo}: it does not exist, or needs a token and its licence accepted",
            hint="check the name; else accept the licence on its page, and run `hf auth login` or set HF_TOKEN",
        ) from error
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(f"{repo} does not hold that file or revision", hint="check the name") from error
    except (errors.OfflineModeIsEnabled, errors.HFValidationError) as error:
        raise DownloadError(f"{repo}: {error}", hint="check HF_HUB_OFFLINE and the name") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "nothing"
        why = "it asks to wait" if status == 429 else "try again later, or check HF_TOKEN"
        raise DownloadError(f"the hub answers {status} for {repo}", hint=why) from error
    except (broken, ConnectionError, TimeoutError) as error:
        if busy:
            raise _Busy(f"the connection failed ({error})") from error
        raise DownloadError(
            f"the hub cannot be reached ({error})", hint="check the connection and HF_ENDPOINT"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadError(
            f"the hub sends something else than a repository for {repo}", hint="try again later"
        ) from error
