"""Everything that edge-spec raises on purpose.

    EdgeSpecError
    ├── SettingsError             a setting out of its range, or unknown
    │   └── GrammarDeadEnd        no token of the model can go on as the grammar wants
    ├── ModelFileError            a file that cannot be used as a model
    │   ├── ModelNotFound
    │   ├── NotAModel             readable, but another kind of file
    │   ├── TruncatedModel        a file that ends too early
    │   └── UnsupportedModel      a sound file that this engine cannot run
    ├── VocabularyMismatch        a drafter whose token ids mean something else
    ├── PromptError               a prompt that cannot be read
    │   └── PromptTooLong
    ├── ContextFull               no room for one more token
    ├── OutOfMemory               it would not fit; both numbers are in the error
    │   └── BudgetExceeded        more than the memory budget holds
    ├── DiskFull                  a file would not fit; both numbers are in the error
    ├── Cancelled                 stopped by the user; everything stays usable
    ├── Closed                    used after close()
    ├── StateError                saved state that is damaged or of another model
    └── BackendError              the library below failed in an unforeseen way

Every message is one sentence that names the thing at fault, followed where possible by ``hint``,
which says what to do next.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BudgetExceeded",
    "Cancelled",
    "Closed",
    "ContextFull",
    "DiskFull",
    "EdgeSpecError",
    "GrammarDeadEnd",
    "ModelFileError",
    "ModelNotFound",
    "NotAModel",
    "OutOfMemory",
    "PromptError",
    "PromptTooLong",
    "SettingsError",
    "StateError",
    "TruncatedModel",
    "UnsupportedModel",
    "VocabularyMismatch",
]


class EdgeSpecError(Exception):
    """The root of the tree. ``str(error)`` is one line: what is wrong, then what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class SettingsError(EdgeSpecError):
    """A setting is out of its range, contradicts another one, or does not exist."""


class GrammarDeadEnd(SettingsError):
    """The reply has come to a place where the grammar allows none of the model's tokens, and no end."""

    def __init__(self, *, n_tokens: int) -> None:
        super().__init__(
            f"after {n_tokens} tokens the grammar allows none of this model's tokens",
            hint="check that the model has tokens for every character that the grammar asks for",
        )
        self.n_tokens = n_tokens


class ModelFileError(EdgeSpecError):
    """A file cannot be used as a model."""


class ModelNotFound(ModelFileError):
    """There is no such file, or it cannot be opened."""


class NotAModel(ModelFileError):
    """The file is readable but is no GGUF, or not the ONNX graph that its name promises."""


class TruncatedModel(ModelFileError):
    """The file starts as a model and ends before its content does."""


class UnsupportedModel(ModelFileError):
    """The file is sound, but this engine cannot run it."""


class VocabularyMismatch(EdgeSpecError):
    """Two models that should work together give different meanings to a token id."""


class PromptError(EdgeSpecError):
    """The prompt cannot be used."""


class PromptTooLong(PromptError):
    """The prompt leaves no room for an answer in the context."""

    def __init__(self, *, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt} tokens and the context holds {n_ctx}, one of them for the answer",
            hint="shorten the prompt or raise --ctx",
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class ContextFull(EdgeSpecError):
    """A decode was asked for more tokens than the context still holds."""

    def __init__(self, *, n_past: int, n_new: int, n_ctx: int) -> None:
        super().__init__(
            f"{n_new} more tokens after {n_past} do not fit a context of {n_ctx}", hint="raise the context size"
        )
        self.n_past = n_past
        self.n_new = n_new
        self.n_ctx = n_ctx


class OutOfMemory(EdgeSpecError):
    """What was asked for needs more memory than there is."""

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int, hint: str) -> None:
        mib = 1 << 20
        super().__init__(
            f"{what} needs {-(-needed_bytes // mib):,} MiB and {available_bytes // mib:,} MiB are available", hint=hint
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class BudgetExceeded(OutOfMemory):
    """What was asked for needs more memory than the budget leaves; ``hint`` names what would fit."""

    def __init__(self, what: str, *, needed_bytes: int, allowed_bytes: int, hint: str) -> None:
        super().__init__(what, needed_bytes=needed_bytes, available_bytes=allowed_bytes, hint=hint)
        mib = 1 << 20
        self.message = (
            f"{what} needs {-(-needed_bytes // mib):,} MiB and the memory budget leaves {allowed_bytes // mib:,} MiB"
        )
        self.args = (self.message,)
        self.allowed_bytes = allowed_bytes


class DiskFull(EdgeSpecError):
    """A file that is to be written needs more room than the disk has."""

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int, hint: str) -> None:
        mib = 1 << 20
        super().__init__(
            f"{what} needs {-(-needed_bytes // mib):,} MiB of disk and {available_bytes // mib:,} MiB are free",
            hint=hint,
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class Cancelled(EdgeSpecError):
    """A decode or a generation was stopped from outside. The model stays usable."""

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


class Closed(EdgeSpecError):
    """Something was used after it had been closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed", hint="load it again")


class StateError(EdgeSpecError):
    """Saved state is damaged, of another version, or belongs to another model."""


class BackendError(EdgeSpecError):
    """The library below failed in a way that nothing here foresaw."""
