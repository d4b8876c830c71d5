"""What the child of ``edge_spec.engines.trial`` does; it imports little, so that it starts quickly."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["SECONDS", "main"]

_MOST_BYTES = 2 << 30
"""Address space: several times what the largest vocabularies need."""

SECONDS = 20
"""Of the processor, for each file; then the system ends the process with SIGXCPU."""

_TOKENS = 2000
_TEXT = "Hello, wörld!\n\n  東京 🙂 123 <|x|> </s> \t\0 naïve 'll"


def main(asked: Sequence[tuple[bool, Sequence[str]]]) -> NoReturn:
    """Read the files that the command names, and write a line for each: why it cannot be used, as a clause, or nothing.

    What a GGUF raises will be raised again by whoever wants the file.

    Args:
        asked: for each of them, whether text is also turned into tokens and back, and what else reads it, see
            ``Engine.reader``.
    """
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = _MOST_BYTES if most == resource.RLIM_INFINITY else min(most, _MOST_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
        # What happens to strange files is told in a line, not kept.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for path, (tokenizes, readers) in zip(map(Path, sys.argv[1:]), asked, strict=True):
        fault = ""
        _allow(SECONDS)
        # What is not the file's doing will be raised again. A message of the interpreter would cost more than it says.
        with suppress(BaseException):
            if path.suffix == ".json":
                fault = _read_tokenizer(path)
            else:
                _read_gguf(path, tokenizes, readers)
        os.write(1, f"{fault}\n".encode("utf-8", "replace"))
    # Python would tidy up while somebody waits.
    os._exit(0)


def _allow(seconds: int) -> None:
    """Let this process take so much more of the processor's time."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        wanted = math.ceil(used.ru_utime + used.ru_stime) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(most, wanted), most))


def _read_tokenizer(path: Path) -> str:
    """Return why it cannot be used: the library tells its panics to standard error, at length."""
    from edge_spec.errors import UnsupportedModel
    from edge_spec.models.json_tokenizer import JsonTokenizer

    try:
        tokenizer = JsonTokenizer(path, bos=-1, eos=-1, ends=frozenset())
    except UnsupportedModel as error:
        return " ".join(error.message.removeprefix(str(path)).split())
    with closing(tokenizer):
        try:
            _use(tokenizer, tokenizer.tokenize(_TEXT, add_special=True))
        except KeyboardInterrupt:
            raise  # not what the file did
        except BaseException as error:
            return f"cannot be used: {' '.join(str(error).split())}"
    return ""


def _read_gguf(path: Path, tokenizes: bool, readers: Sequence[str]) -> None:
    from importlib import import_module

    from edge_spec.engines.tokenizers import open_tokenizer
    from edge_spec.models import inspect

    if tokenizes:
        # What one reader refuses, another one may read.
        with suppress(Exception), closing(open_tokenizer(inspect(path))) as tokenizer:
            _use(tokenizer, tokenizer.tokenize(_TEXT, add_special=True))
    for reader in readers:
        module, _, name = reader.partition(":")
        with suppress(Exception):
            getattr(import_module(module), name)(path, _TEXT if tokenizes else None)


def _use(tokenizer: FileTokenizer, tokens: Sequence[int]) -> None:
    tokenizer.text(tokens)
    for token in range(0, tokenizer.n_vocab, max(1, tokenizer.n_vocab // _TOKENS)):
        tokenizer.token_bytes(token)
        tokenizer.name(token)
