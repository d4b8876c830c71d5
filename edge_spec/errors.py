"""Everything that edge-spec raises on purpose.

    EdgeSpecError
    ├── SettingsError             a setting that is out of range, unknown, or contradicts another one
    │   └── GrammarDeadEnd        the grammar allows none of the model's tokens
    ├── ModelFileError            a file that cannot be used as a model
    │   ├── ModelNotFound
    │   ├── NotAModel             readable, but not a model file
    │   ├── TruncatedModel        a file that ends too early
    │   └── UnsupportedModel      a valid file that this engine cannot run
    ├── VocabularyMismatch        a drafter whose token ids mean something else
    ├── PromptError               a prompt that cannot be read
    │   ├── NoChatTemplate        messages, for a model that does not know how conversations are written
    │   └── PromptTooLong
    ├── ContextFull               no room for another token
    ├── PoolFull                  other texts hold the cells that one needs
    ├── OutOfMemory               it would not fit; both numbers are in the error
    │   └── BudgetExceeded        more than the memory budget allows
    ├── DiskFull                  a file would not fit; both numbers are in the error
    ├── DownloadError             a file cannot be fetched, or is not what was promised
    ├── Cancelled                 stopped by the user; everything stays usable
    ├── UnfinishedReply           another reply has to be read to its end, or closed, first
    ├── AlreadyRead               what a reply tells once has been told
    ├── Closed                    used after close()
    ├── StateError                saved state that is damaged or belongs to another model
    └── BackendError              the library below failed in an unforeseen way
        └── NoNumbers             a model has computed NaN in place of logits

Every message is one sentence that names what is at fault, followed where possible by ``hint``, which says what to
do next. Arguments that they name are data, see ``Sentence``: as text they stand in backticks, as they would be written
in a Python call, and ``spelled`` gives the words of another surface: `n_ctx` is ``--ctx`` at the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

__all__ = [
    "AlreadyRead",
    "Arguments",
    "BackendError",
    "BudgetExceeded",
    "Cancelled",
    "Closed",
    "ContextFull",
    "DiskFull",
    "DownloadError",
    "EdgeSpecError",
    "GrammarDeadEnd",
    "ModelFileError",
    "ModelNotFound",
    "NoChatTemplate",
    "NoNumbers",
    "NotAModel",
    "OutOfMemory",
    "PoolFull",
    "PromptError",
    "PromptTooLong",
    "Sentence",
    "SettingsError",
    "StateError",
    "TruncatedModel",
    "UnfinishedReply",
    "UnsupportedModel",
    "VocabularyMismatch",
    "plainly",
    "spelled",
]


BAD_RECORD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions of decoding and reading a JSON record that is damaged or has another shape."""


_ESCAPED = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")
"""Characters at which ``str.splitlines`` begins another line, and halves of surrogate pairs, which no encoding has."""


class Arguments(dict[str, Any]):
    """Arguments with values that a sentence advises, by name."""


Spelling = Callable[[str | Arguments], str]
"""Writes the name of an argument or, followed by parentheses, of a method; or arguments with values."""


class Sentence(str):
    """A sentence that names arguments, as they are written in Python; ``spelled`` writes them for another surface.

    Args:
        template: with the names of arguments in braces.
        values: what else stands in braces, by name; among them may be ``Arguments`` and other sentences.
    """

    _template: str
    _values: dict[str, Any]

    def __new__(cls, template: str, **values: Any) -> Sentence:
        self = super().__new__(cls, _filled(template, values, _in_python))
        self._template, self._values = template, values
        return self

    def spelled(self, spelling: Spelling) -> str:
        """Return the sentence with its arguments written by ``spelling``."""
        return _filled(self._template, self._values, spelling)


def spelled(text: object, spelling: Spelling) -> str:
    """Return a text with its arguments in other words; most texts name none."""
    return text.spelled(spelling) if isinstance(text, Sentence) else str(text)


def plainly(named: str | Arguments) -> str:
    """Spell arguments as in Python, without marks."""
    return named if isinstance(named, str) else ", ".join(f"{name}={value!r}" for name, value in named.items())


def _in_python(named: str | Arguments) -> str:
    return f"`{plainly(named)}`"


def _filled(template: str, values: dict[str, Any], spelling: Spelling) -> str:
    parts = []
    for text, name, _, _ in Formatter().parse(template):
        value = values.get(name, name) if name is not None else ""
        is_named = name is not None and (name not in values or isinstance(value, Arguments))
        parts += [text, spelling(value) if is_named else spelled(value, spelling)]
    return "".join(parts)


def _in_a_line(text: str) -> str:
    """Return a text with what breaks a line, or cannot be written, as in Python: it may quote what others wrote."""
    return _ESCAPED.sub(lambda found: repr(found[0])[1:-1], text)


class EdgeSpecError(Exception):
    """The root of the tree. ``str(error)`` is one line: what is wrong, then what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return _in_a_line(f"{self.message}; {self.hint}" if self.hint else self.message)

    def spelled(self, spelling: Spelling) -> str:
        """Return the same line with the arguments that it names in other words."""
        return _in_a_line("; ".join(spelled(text, spelling) for text in (self.message, self.hint) if text))


class SettingsError(EdgeSpecError):
    """A setting is out of range, contradicts another one, or does not exist.

    Attributes:
        argument: the argument at fault, under its name in Python; empty if it is not one argument.
        problem: what is wrong with it. The message is both: ``top_p is 3 and must be at most 1``.
    """

    def __init__(self, problem: str, *, argument: str = "", hint: str = "") -> None:
        super().__init__(f"{argument} {problem}" if argument else problem, hint=hint)
        self.argument = argument
        self.problem = problem

    def spelled(self, spelling: Spelling) -> str:
        at_fault = f"{spelling(self.argument)} " if self.argument else ""
        return _in_a_line(at_fault + "; ".join(spelled(text, spelling) for text in (self.problem, self.hint) if text))


class GrammarDeadEnd(SettingsError):
    """The reply has reached a state in which the grammar allows neither the end nor any of the model's tokens.

    Also raised if computing the allowed tokens is too much work, since the text can be parsed in thousands of ways.
    """

    def __init__(self, *, n_tokens: int) -> None:
        super().__init__(
            f"after {n_tokens} tokens the grammar allows none of this model's tokens",
            hint="check that the model has tokens for its characters, and that a text cannot be read in too many ways",
        )
        self.n_tokens = n_tokens


class ModelFileError(EdgeSpecError):
    """A file cannot be used as a model."""


class ModelNotFound(ModelFileError):
    """There is no such file, or it cannot be opened."""


class NotAModel(ModelFileError):
    """The file is readable but not a GGUF, or not the ONNX graph that its name promises."""


class TruncatedModel(ModelFileError):
    """The file starts as a model but ends too early."""


class UnsupportedModel(ModelFileError):
    """The file is valid, but this engine cannot run it."""


class VocabularyMismatch(EdgeSpecError):
    """Two models that should work together assign different meanings to a token id."""


class PromptError(EdgeSpecError):
    """The prompt cannot be used."""


class NoChatTemplate(PromptError):
    """The model's file has no chat template; the model can only continue text."""

    def __init__(self) -> None:
        super().__init__(
            "this model has no chat template",
            hint=Sentence("use a chat model, or {generate()} with {instead}", instead=Arguments(raw=True)),
        )


class PromptTooLong(PromptError):
    """The prompt leaves no room for an answer in the context.

    Attributes:
        n_prompt, n_ctx: tokens of both.
        count: how many the prompt has, in words: of a very long text it is only known how many at least.
    """

    def __init__(self, *, n_prompt: int, n_ctx: int, is_least: bool = False) -> None:
        self.count = f"at least {n_prompt}" if is_least else str(n_prompt)
        super().__init__(
            f"the prompt has {self.count} tokens, and a context of {n_ctx} has no room for an answer to it",
            hint=Sentence("shorten the prompt or raise {n_ctx}"),
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class ContextFull(EdgeSpecError):
    """A decode was asked for more tokens than the context still has room for."""

    def __init__(self, *, n_past: int, n_new: int, n_ctx: int) -> None:
        super().__init__(
            f"{n_new} more tokens after {n_past} do not fit a context of {n_ctx}", hint=Sentence("raise {n_ctx}")
        )
        self.n_past = n_past
        self.n_new = n_new
        self.n_ctx = n_ctx


class PoolFull(EdgeSpecError):
    """A text needs more cells than its model's pool has free, or the pool holds its most texts.

    Args:
        n_texts: how many there can be, where that is what is lacking.
    """

    def __init__(self, *, n_free: int, n_needed: int, n_texts: int = 0) -> None:
        super().__init__(
            f"no more than {n_texts} texts can have cells at a time"
            if n_texts
            else f"{n_needed} more cells are needed, and other texts leave {n_free} of the pool free",
            hint=Sentence("read one of them to its end, or {close()} it, first"),
        )
        self.n_free = n_free
        self.n_needed = n_needed


class OutOfMemory(EdgeSpecError):
    """More memory is needed than is available."""

    _SENTENCE = "{what} needs {needed}, and {available} are available"

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int, hint: str) -> None:
        super().__init__(_shortage(self._SENTENCE, what, needed_bytes, available_bytes), hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class BudgetExceeded(OutOfMemory):
    """More memory is needed than the budget leaves; ``hint`` says what would fit."""

    _SENTENCE = "{what} needs {needed}, and the memory budget leaves {available}"

    def __init__(self, what: str, *, needed_bytes: int, allowed_bytes: int, hint: str) -> None:
        super().__init__(what, needed_bytes=needed_bytes, available_bytes=allowed_bytes, hint=hint)
        self.allowed_bytes = allowed_bytes


class DiskFull(EdgeSpecError):
    """A file to be written needs more room than the disk has."""

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int, hint: str) -> None:
        sentence = "{what} needs {needed} of disk space, and {available} are free"
        super().__init__(_shortage(sentence, what, needed_bytes, available_bytes), hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class DownloadError(EdgeSpecError):
    """A file cannot be downloaded, or the download does not match its size or hash."""


class Cancelled(EdgeSpecError):
    """A decode or a generation was stopped from outside. The model stays usable."""

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


class UnfinishedReply(EdgeSpecError):
    """An operation has to wait for the end of a reply that would never come."""

    def __init__(self, which: str) -> None:
        super().__init__(
            f"{which} is not finished", hint=Sentence("read it to its end, or {cancel()} or {close()} it first")
        )


class AlreadyRead(EdgeSpecError):
    """Events were requested of a reply that has been read; they are yielded once, while it is read."""

    def __init__(self) -> None:
        hint = "its words are in `reply.text`; to keep its events, list them instead of reading it otherwise"
        super().__init__("this reply was read to its end, and its events can be read once", hint=hint)


class Closed(EdgeSpecError):
    """Something was used after it had been closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed", hint="load it again")


class StateError(EdgeSpecError):
    """Saved state is damaged, of another version, or belongs to another model."""


class BackendError(EdgeSpecError):
    """The library below failed in an unforeseen way."""


class NoNumbers(BackendError):
    """A model has computed NaN in place of logits.

    Args:
        model: its name.
        tensor: one of its weights that hold no numbers, if that is known.
    """

    def __init__(self, model: str = "the model", tensor: str | None = None) -> None:
        found = f": {tensor} holds some" if tensor is not None else ""
        super().__init__(
            f"{model} has computed NaN instead of a number{found}",
            hint="its weights are damaged, or too large for the types that it computes with; get the file again",
        )


def _shortage(sentence: str, what: str, needed_bytes: int, available_bytes: int) -> str:
    """Return both sizes in one unit, the needed one rounded up and the available one rounded down."""
    mib = 1 << 20
    needed, available = -(-needed_bytes // mib), available_bytes // mib
    if max(needed, available) < 10 << 10:
        return sentence.format(what=what, needed=f"{needed:,} MiB", available=f"{available:,} MiB")
    tenths = -(-needed * 10 // 1024), available * 10 // 1024
    return sentence.format(what=what, needed=f"{tenths[0] / 10:,.1f} GiB", available=f"{tenths[1] / 10:,.1f} GiB")
