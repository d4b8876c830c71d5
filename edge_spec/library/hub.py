"""Access to the hub and to other servers that offer a GGUF: list files, read a header, download.

Requests go through ``huggingface_hub``, so that its tokens, mirrors (``HF_ENDPOINT``), proxies and offline mode hold
here as well. The download is our own: that library keeps nothing of an interrupted one. Its token goes to the hub and
to no other server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from edge_spec.errors import BAD_RECORD, DownloadError, ModelNotFound
from edge_spec.extras import not_installed
from edge_spec.foreign import parse_json, read_regular
from edge_spec.library.download import Busy, OnStage, Patience, RemoteFile, fetch, in_time, stream

__all__ = ["Hub", "RemoteFile"]

T = TypeVar("T")

_TIMEOUT_S = 30.0
_BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which another attempt may succeed."""

_TRIES_TO_ASK = 4
_MOST_LISTED_BYTES = 16 << 20
_ENDPOINT = "HF_ENDPOINT"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HF_TOKEN_PATH", "HF_HOME")
_HEADERS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_USER_AGENT_ORIGIN")
_OTHERS = (*_PROXIES, _ENDPOINT, "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
"""Environment variables that httpx and huggingface_hub read; see their documentation."""

_OF_HEADERS = {"LocalProtocolError", "UnicodeEncodeError"}
_OF_SETTINGS = {*_OF_HEADERS, "UnsupportedProtocol"}
"""Names of httpx errors that another attempt does not repair."""

_IDENTITY = {"Accept-Encoding": "identity"}
"""Ask for uncompressed bytes: ranges of a compressed body would be other bytes."""


class Hub:
    """A hub.

    Args:
        endpoint: its address; the public one, or that of ``HF_ENDPOINT``, if None.
        environment: variables, to name those that the libraries cannot use.
        pause: waits a number of seconds before another attempt.

    Raises:
        EdgeSpecError: ``huggingface_hub`` is not installed. DownloadError: it cannot use the environment.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._environment = environment
        try:
            import huggingface_hub
            import huggingface_hub.constants
            import huggingface_hub.utils
        except ImportError:
            raise not_installed("huggingface_hub", extra="hub") from None
        except ValueError as error:
            raise self._unusable(error, "the hub") from error
        self._library: Any = huggingface_hub
        self._endpoint = endpoint
        self._pause = pause

    def files(self, repo: str, revision: str = "main") -> list[RemoteFile]:
        """Return the files of a repository; in offline mode those in the hub's own cache.

        Raises:
            ModelNotFound: there is none, or it needs a token. DownloadError: the hub cannot be asked.
        """
        if self._library.constants.HF_HUB_OFFLINE:
            return self._cached(repo, revision)
        return self._asked(repo, lambda: self._listed(repo, revision))

    def look(self, address: str) -> RemoteFile:
        """Return the size and version of a file at another address than the hub's; only one byte is read.

        Raises:
            ModelNotFound: it is not there. DownloadError: the server cannot be asked, or does not say its size.
        """
        return self._asked(address, lambda: self._looked_at(address))

    def read(self, file: RemoteFile, first: int, last: int) -> bytes:
        """Return the bytes ``[last - first]`` of a file, fewer at its end.

        Raises:
            ModelNotFound, DownloadError: they cannot be had.
        """
        found = bytearray()
        stream(self._chunks, file, first, min(last, file.n_bytes), found.extend, self._pause)
        return bytes(found)

    def fetch(self, file: RemoteFile, path: Path, on_stage: OnStage = lambda stage, done: None) -> None:
        """Write a whole file to ``path``, which may hold the beginning of it already, and check it.

        Raises:
            ModelNotFound, DownloadError: it cannot be had. DiskFull: there is no room for it. ``path`` then holds what
                has come so far, unless that is damaged.
        """
        fetch(self._chunks, file, path, self._pause, on_stage)

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        """Return the response to a request; retry it where that may help."""
        patience = Patience(self._pause, _TRIES_TO_ASK)
        while True:
            try:
                return ask()
            except Busy as busy:
                named = ", ".join(self._set(_ENDPOINT, *_PROXIES) or [_ENDPOINT])
                patience.wait(what, busy, f"try again later; check the connection and {named}")

    def _listed(self, repo: str, revision: str) -> list[RemoteFile]:
        endpoint = self._endpoint or self._library.constants.ENDPOINT
        address = f"{endpoint}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}?blobs=true"
        headers = self._headers(repo) | _IDENTITY
        with self._answer(address, headers, about=repo) as response:
            raw = bytearray()
            for chunk in in_time(response.iter_bytes()):
                raw += chunk
                if len(raw) > _MOST_LISTED_BYTES:
                    raise ValueError("no repository has so many files")
            found = parse_json(bytes(raw), finite=True)
            return [
                RemoteFile(
                    repo=repo,
                    commit=str(found["sha"]),
                    path=str(each["rfilename"]),
                    n_bytes=int(each.get("size") or 0),
                    sha256=str(each["lfs"]["sha256"]) if each.get("lfs") else "",
                )
                for each in found["siblings"]
            ]

    def _cached(self, repo: str, revision: str) -> list[RemoteFile]:
        """Return a repository's files in the hub's own cache, where large files are named by their hash."""
        place = Path(self._library.constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
        named = place / "refs" / revision
        commit = read_regular(named).decode().strip() if named.is_file() else revision
        snapshot = place / "snapshots" / commit
        found = [
            RemoteFile(
                repo=repo,
                commit=commit,
                path=path.relative_to(snapshot).as_posix(),
                n_bytes=path.stat().st_size,
                sha256=blob if re.fullmatch("[0-9a-f]{64}", blob := path.resolve().name) else "",
                local=path,
            )
            for path in sorted(snapshot.rglob("*"))
            if path.is_file()
        ]
        if not found:
            raise DownloadError(
                f"HF_HUB_OFFLINE is set, and {place.parent} has no file of {repo}", hint="unset it to fetch the model"
            )
        return found

    def _looked_at(self, address: str) -> RemoteFile:
        parts = urlsplit(address)
        with self._answer(address, {"Range": "bytes=0-0", **_IDENTITY}, about=parts.netloc) as response:
            said = re.fullmatch(r"bytes 0-0/(\d+)", response.headers.get("Content-Range", ""))
            size = said[1] if said else response.headers.get("Content-Length", "") * (response.status_code == 200)
            version = _version(response.headers)
        if not size.isdecimal() or int(size) == 0:
            raise DownloadError(
                f"{parts.netloc} does not say how large {Path(unquote(parts.path)).name} is",
                hint="download it with a browser, and give its path to `edge-spec run`",
            )
        path = unquote(parts.path).lstrip("/")
        return RemoteFile(repo=parts.netloc, commit="", path=path, n_bytes=int(size), address=address, version=version)

    def _chunks(self, file: RemoteFile, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of a range, until it is complete or the connection ends.

        Raises:
            Busy: another attempt may succeed. ModelNotFound, DownloadError: no other attempt can.
        """
        address, headers = file.address, {}
        if not address:
            address = self._library.hf_hub_url(file.repo, file.path, revision=file.commit, endpoint=self._endpoint)
            headers = self._headers(file.repo)
        headers |= {"Range": f"bytes={first}-{last - 1}", **_IDENTITY}
        with self._answer(address, headers, about=file.repo) as response:
            place = _place(response, file)
            if not 0 <= place <= first:
                said = f"unexpected response from {file.repo}: not the part of {file.name} that was asked for"
                raise DownloadError(said, hint="try again later")
            # Yield pieces as they arrive: a partly filled larger piece would be lost with the connection.
            for chunk in response.iter_bytes():
                kept = chunk[max(0, first - place) : last - place]
                place += len(chunk)
                if kept:
                    yield kept
                if place >= last:
                    return

    @contextmanager
    def _answer(self, address: str, headers: dict[str, str], *, about: str) -> Iterator[Any]:
        """Yield the successful response to a request, with its body unread."""
        with _errors_of_the_hub(about), ExitStack() as opened:
            with self._usable(about):
                client = self._library.utils.get_session()
                asked = client.stream("GET", address, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S)
                response = opened.enter_context(asked)
            status = int(response.status_code)
            if status in _BUSY:
                raise Busy(f"{about} answers {status}", _seconds(response.headers.get("Retry-After", "")))
            if status not in (200, 206):
                self._library.utils.hf_raise_for_status(response)
                raise DownloadError(f"{about} answers {status}", hint="try again later")
            yield response

    def _set(self, *names: str) -> list[str]:
        """Return the variables that are set, as they are spelled in the environment."""
        spelled = (each for name in names for each in dict.fromkeys((name, name.lower())))
        return [name for name in spelled if self._environment.get(name)]

    @contextmanager
    def _usable(self, about: str) -> Iterator[None]:
        """Turn errors about unusable values of environment variables into one that names the variables.

        Raises:
            DownloadError: a variable or the address cannot be used.
        """
        try:
            yield
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            if _is_of(error, {"HTTPError"}) and not _is_of(error, _OF_SETTINGS):
                raise
            raise self._unusable(error, about) from error

    def _unusable(self, error: Exception, about: str) -> DownloadError:
        is_secret = _is_of(error, _OF_HEADERS)
        likely = _HEADERS if is_secret else _FILES if isinstance(error, OSError) else _OTHERS
        names = self._set(*likely)
        said = [name for name in names if self._environment[name][:40] in str(error)]
        named = " or ".join(said or names)
        # Do not show the message: an error about a header may contain a token.
        why = "" if is_secret else f": {' '.join(str(error).split())[:160]}"
        if named:
            return DownloadError(f"{named} cannot be used{why}", hint="correct the variable, or unset it")
        return DownloadError(f"{about} cannot be asked{why}", hint="check the address")

    def _headers(self, about: str) -> dict[str, str]:
        with self._usable(about):
            return dict(self._library.utils.build_hf_headers())


def _is_of(error: Exception, kinds: set[str]) -> bool:
    """Return whether an error is of one of these classes, by name: the library has changed its HTTP client before."""
    return any(kind.__name__ in kinds for kind in type(error).__mro__)


def _place(response: Any, file: RemoteFile) -> int:
    """Return the offset in the file at which a response begins; -1 if it does not say.

    Raises:
        DownloadError: the file has changed since.
    """
    said = re.match(r"bytes (\d+)-\d+(?:/(\d+))?", response.headers.get("Content-Range", ""))
    version = _version(response.headers)
    is_other = bool(said and said[2] and int(said[2]) != file.n_bytes) or bool(version and version != file.version)
    if file.address and is_other:
        raise DownloadError(f"{file.name} has changed on {file.repo} since it was looked at", hint="pull it again")
    # A server without support for ranges sends the file from its beginning.
    return (int(said[1]) if said else -1) if response.status_code == 206 else 0


def _version(headers: Any) -> str:
    return str(headers.get("ETag") or headers.get("Last-Modified") or "")


def _seconds(text: str) -> float:
    """Return the seconds that ``Retry-After`` asks for, which may be a date."""
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


@contextmanager
def _errors_of_the_hub(about: str) -> Iterator[None]:
    """Turn what the library raises into our errors, or into ``Busy`` where another attempt may help.

    Args:
        about: the repository or host.
    """
    from huggingface_hub import errors

    # The library has changed its HTTP client before; errors of any client derive from this class.
    unreachable = next(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        yield
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise ModelNotFound(
            f"{about} does not exist or needs access",
            hint="check the name; else accept the license on its page, and run `hf auth login` or set HF_TOKEN",
        ) from error
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(f"{about} does not hold that file or revision", hint="check the name") from error
    except (errors.OfflineModeIsEnabled, errors.HFValidationError) as error:
        raise DownloadError(f"{about}: {error}", hint="check HF_HUB_OFFLINE and the name") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in _BUSY:
            raise Busy(f"it answers {status}", _seconds(error.response.headers.get("Retry-After", ""))) from error
        if status in (404, 410):
            raise ModelNotFound(f"{about} does not have that file", hint="check the address") from error
        raise DownloadError(f"{about} answers {status}", hint="try again later, or check HF_TOKEN") from error
    except (unreachable, ConnectionError, TimeoutError) as error:
        raise Busy(f"it cannot be reached ({error})") from error
    except BAD_RECORD as error:
        raise DownloadError(f"unexpected response from {about}", hint="try again later") from error
