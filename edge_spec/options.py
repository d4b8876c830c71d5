"""Options: descriptions of keyword arguments, once for Python, the command line and HTTP.

A list of options is a ``TypedDict`` whose fields are ``Annotated`` with an ``Option``. Functions take it by ``Unpack``,
so type checkers and editors know every name and type. Beside it, in the same file, stands a frozen dataclass with the
same names: it has the defaults and refuses what is out of range. ``options_of`` brings both together; what else has to
know options by name (signatures, the command line, the server, saved conversations) asks for that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from functools import cached_property
from inspect import Parameter, Signature, cleandoc, signature
from numbers import Integral, Real
from operator import index
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from edge_spec.errors import SettingsError

__all__ = [
    "Option",
    "documented",
    "has_kind",
    "is_finite",
    "options_of",
    "own_number",
    "python_option",
    "refuse_unknown",
    "require_in_range",
    "require_one_of",
    "require_path",
    "require_whole",
    "written",
]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """The description of one option.

    Attributes:
        help: what it does; the command line shows the first sentence.
        at_least, above, at_most: the numbers that it can be.
        shown: its default in words, where the value does not tell.
        flag: its name at the command line; that of the argument with hyphens if empty, None if it has none.
        short: another name there.
        field: its name in HTTP requests; that of the argument if empty, None if it has none.
        default: of the argument; that of the checked value, if it has one.
        name, hint: of the argument; set by ``options_of``.
    """

    help: str
    _: KW_ONLY
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    shown: str = ""
    flag: str | None = ""
    short: str = ""
    field: str | None = ""
    default: Any = None
    name: str = ""
    hint: Any = None

    @cached_property
    def kind(self) -> Any:
        """The type of a value that is not None; None if there are several."""
        members = get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)
        kinds = [each for each in members if each is not NoneType]
        return kinds[0] if len(kinds) == 1 else None

    @property
    def brief(self) -> str:
        """The first sentence of the help."""
        return self.help.partition(". ")[0].rstrip(".") + "."

    @property
    def is_repeatable(self) -> bool:
        """Whether the option can be given several times."""
        return isinstance(self.default, tuple | dict)

    def wanted_instead(self, value: Any) -> str:
        """Return the valid range if a value is outside of it, else an empty text; a default of None is valid."""
        if self.kind not in (bool, int, float) or (value is None and self.default is None):
            return ""
        if self.kind is bool:
            return "" if isinstance(value, bool) else "True or False"
        is_whole = self.kind is int
        if not has_kind(value, Integral if is_whole else Real) or not (is_whole or is_finite(value)):
            return _number("whole" if is_whole else "finite", self._range)
        return "" if self.above < value <= self.at_most and value >= self.at_least else self._range

    @property
    def _range(self) -> str:
        """The numbers that it can be, in words; empty if all."""
        if self.above > -math.inf:
            return f"above {self.above:g} and at most {self.at_most:g}"
        if self.at_most < math.inf:
            return f"from {self.at_least:g} to {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least > -math.inf else ""


def python_option(help: str, **more: Any) -> Option:
    """Return an option that only Python has."""
    return Option(help, flag=None, field=None, **more)


def options_of(keywords: type, *values: type) -> dict[str, Option]:
    """Return the options of a list, by name.

    Args:
        keywords: the ``TypedDict``.
        values: the dataclasses that have their defaults; the last one counts.
    """
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for value in values
        for each in fields(value)
    }
    return {
        name: replace(
            option,
            name=name,
            hint=hint,
            default=defaults.get(name, option.default),
            flag="--" + name.replace("_", "-") if option.flag == "" else option.flag,
            field=option.field if option.field is None else option.field or name,
        )
        for name, annotated in get_type_hints(keywords, include_extras=True).items()
        for hint, option in [_parts(annotated)]
    }


def _parts(annotated: Any) -> tuple[Any, Option]:
    """Return the type of a field and its option."""
    assert get_origin(annotated) is Annotated
    hint, option = get_args(annotated)
    return hint, option


def require_in_range(options: Mapping[str, Option], value: object) -> None:
    """Raise if a number of a dataclass is out of its range; convert numbers of other libraries to Python's.

    Raises:
        SettingsError: a number is out of its range.
    """
    for name, option in options.items():
        given = getattr(value, name, option.default)
        wanted = option.wanted_instead(given)
        if wanted:
            raise SettingsError(f"is {written(given)} and must be {wanted}", argument=name)
        if option.kind in (int, float) and given is not option.default:
            object.__setattr__(value, name, own_number(given))


def own_number(value: Any) -> Any:
    """Return a number of another library, such as NumPy, as Python's own, which does not overflow.

    Anything else is left as it is.
    """
    if isinstance(value, int | float) and type(value) in (int, float, bool):
        return value
    if has_kind(value, Integral):
        return index(value)
    return float(value) if has_kind(value, Real) else value


def has_kind(value: object, kind: type) -> bool:
    """Return whether a value is a number of a kind; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def is_finite(value: Real | float) -> bool:
    """Return whether a number is finite as a float, too: whole numbers of more than 308 digits are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def written(value: object) -> str:
    """Return a value as Python writes it, which refuses to write very long whole numbers."""
    try:
        return repr(value)
    except ValueError:
        return "a number of very many digits"


def documented(options: Mapping[str, Option]) -> Callable[[Function], Function]:
    """Let ``help`` show what a function takes by ``Unpack``: names, types and defaults, and the text of each."""
    texts = "\n".join(map(_described, options.values()))

    def decorate(function: Function) -> Function:
        own = [each for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        taken = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.hint)
            for name, option in options.items()
        ]
        returned = signature(function).return_annotation
        vars(function)["__signature__"] = Signature([*own, *taken], return_annotation=returned)
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\nOptions:\n{texts}\n"
        return function

    return decorate


def _described(option: Option) -> str:
    """Return the lines of an option in a docstring."""
    default = "" if callable(option.default) else f" [default: {option.shown or repr(option.default)}]"
    text = f"{option.name}: {option.help}{default}"
    return fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)


_UNLIMITED = (1 << 31) - 1
"""Limits from here on only keep numbers within C's range; help texts omit them."""


def require_whole(name: str, value: Any, least: int, most: int, *, hint: str = "") -> None:
    """Refuse anything but a whole number from ``least`` to ``most``.

    Raises:
        SettingsError: it is something else, a truth value included, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_too_large = isinstance(value, int) and value > most
        wanted = f"from {least} to {most:,}" if most < _UNLIMITED or is_too_large else f"at least {least}"
        raise SettingsError(f"is {written(value)} and must be {_number('whole', wanted)}", argument=name, hint=hint)


def _number(kind: str, wanted: str) -> str:
    """Return the words for a number of a kind in a range."""
    return " ".join(filter(None, ("a", kind, "number", "of" * wanted.startswith("at least"), wanted)))


def require_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse anything but one of the choices.

    Raises:
        SettingsError: the value is not among the choices.
    """
    known = tuple(choices)
    if value not in known:
        raise SettingsError(f"is {value!r} and must be one of {', '.join(known)}", argument=name)


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for unknown names of settings, and suggest the likely one.

    Raises:
        SettingsError: a name is unknown.
    """
    names = sorted(known)
    unknown = sorted(set(given) - set(names))
    if not unknown:
        return
    from difflib import get_close_matches

    near = [
        each
        for name in unknown
        for each in [other for other in names if other.startswith(name)] or get_close_matches(name, names, 2)
    ]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"known are {', '.join(names)}"
    raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=hint)


def require_path(name: str, value: Any) -> None:
    """Raise if a value can be neither a name nor a path.

    Raises:
        SettingsError: it is neither text nor an ``os.PathLike``, or empty, or holds a zero byte.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise SettingsError(f"is {value!r} and must be a name or a path", argument=name)
