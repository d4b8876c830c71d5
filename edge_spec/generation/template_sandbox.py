"""The Jinja in which templates of model files run: sandboxed, and with limits of time, size and memory.

A template is a program by a stranger. It runs in this process, because every message is rendered by one, so nothing
that it asks for may take long or much: loops, calls, filters and operators pass through a meter, and what could make
much of little is refused by the product of its sizes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from time import monotonic
from types import CodeType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["TemplateSandbox"]

_SECONDS = 10.0
_LONGEST_SOURCE = 1 << 18
_MADE_BYTES = 32 << 20
_MADE_PER_BYTE = 32
"""All values of a rendering may take so much, and so many times what the template is given."""

_LARGEST = 1 << 24
"""Characters that one operation may make."""

_LARGEST_INT = 1 << 128
_WIDEST_INDENT = 64
_BYTES_PER_ITEM = 64

_REPEATING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "indent", "batch", "slice"))
_GROWING = _REPEATING | {"replace", "join", "format", "format_map", "translate", "truncate", "tojson", "sum", "hex"}
"""Methods and filters whose results can be as long as the product of what they are given, numbers included for some."""

_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|[0-9]{4})|\{[^{}]*:[^{}]*(?:\{|[0-9]{4})")
"""Formats that make much of little, or whose width is an argument."""

_LEFT_OUT = ("wordwrap", "urlize", "striptags", "pprint", "xmlattr", "random")
"""Filters of web pages, some of which take the square of a text's length."""


class TemplateLimit(TemplateError):
    """A template wants too much."""


class _Meter:
    """Counts what a rendering takes.

    Args:
        given: the values that the template is given.
    """

    def __init__(self, given: Any) -> None:
        self._left = _MADE_BYTES + _MADE_PER_BYTE * _size(given, 1 << 40)
        self._deadline = monotonic() + _SECONDS

    def tick(self) -> None:
        """Note that something is done."""
        if monotonic() > self._deadline:
            raise TemplateLimit(f"it takes more than {_SECONDS:g} s")

    def made(self, value: Any) -> Any:
        """Note what an operation has made, and return it."""
        self.tick()
        if isinstance(value, int) and not -_LARGEST_INT < value < _LARGEST_INT:
            raise TemplateLimit("it computes with too large a number")
        if isinstance(value, str | bytes | list | tuple | dict):
            parts = 0 if isinstance(value, str | bytes) else len(value)
            self._left -= sys.getsizeof(value) + _BYTES_PER_ITEM * parts
            if self._left < 0:
                raise TemplateLimit("it makes too much text")
        return value

    def shown(self, value: Any) -> Any:
        """Return a value that is to be written as text, which names what is in it as often as it occurs."""
        _size(value, _LARGEST)
        return value

    def before(self, operands: Iterable[Any], *, repeats: bool) -> None:
        """Refuse an operation whose result could be too long; numbers are counts where it ``repeats``."""
        self.tick()
        product = 1
        for operand in operands:
            is_count = repeats and isinstance(operand, int)
            product *= max(1, abs(operand) if is_count else _size(operand, _LARGEST))
            if product > _LARGEST:
                raise TemplateLimit("it makes too long a text")


def _size(value: Any, most: int) -> int:
    """Return how long a value is as a text, roughly.

    Raises:
        TemplateLimit: longer than ``most``.
    """
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, range):
            total += 8 * len(each)
        elif isinstance(each, Mapping):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        total += 8
        if total + len(waiting) > most:
            raise TemplateLimit("it makes too long a text")
    return total


class _Generation(Extension):
    """``{% generation %}``: marks for training which text the assistant wrote; here it is text like any other."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja with what templates of models expect of it. One for each rendering.

    Args:
        given: the values that the template is given.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._meter = meter = _Meter(given)
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=meter.shown,
        )
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        del self.globals["lipsum"]
        # Jinja's own filter escapes for HTML, but this is for a model.
        self.filters["tojson"] = _to_json
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters = {name: self._metered(name, each) for name, each in self.filters.items()}
        self.filters |= {_EACH: self._each, _JOINED: self._joined, _MADE: meter.made}
        self.concat = self._joined  # type: ignore[method-assign]

    def rendered(self, source: str, given: Mapping[str, Any]) -> str:
        """Return what a template makes of the values.

        Raises:
            TemplateError and anything else: it is broken, refuses them, or wants too much.
        """
        if len(source) > _LONGEST_SOURCE:
            raise TemplateLimit(f"it has more than {_LONGEST_SOURCE >> 10} KiB")
        return self.template_class.from_code(self, _compiled(source), self.make_globals(None)).render(given)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Let what has no hook of its own pass through filters: loops, joined texts, slices."""
        parsed = super()._parse(source, name, filename)
        _Replaced().visit(parsed)
        return parsed

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._meter.tick()
            yield value

    def _joined(self, values: Iterable[Any]) -> str:
        parts = []
        for value in values:
            parts.append(self._meter.made(str(self._meter.shown(value))))
        return str(self._meter.made("".join(parts)))

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name in _GROWING:
                args = _listed(args)
                given = (each for each in (*args, *kwargs.values()) if not isinstance(each, _OWN))
                self._meter.before(given, repeats=name in _REPEATING)
            return self._meter.made(function(*args, **kwargs))

        return metered

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= 64):
            raise TemplateLimit("it computes with too large a power")
        if operator == "%" and isinstance(left, str | bytes):
            _require_plain(str(left))
            self._meter.before((left, right), repeats=False)
        if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            self._meter.before((left, right), repeats=True)
        return self._meter.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(__obj, "__name__", "")
        if name in _GROWING:
            args = _listed(args)
            owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", "")
            __self._meter.before((owner, *args, *kwargs.values()), repeats=name in _REPEATING)
            if name.startswith("format"):
                _require_plain(str(owner))
        __self._meter.tick()
        return __self._meter.made(super().call(__context, __obj, *args, **kwargs))


_EACH, _JOINED, _MADE = " each", " joined", " made"
"""Filters that no template can name."""

_OWN = (Context, nodes.EvalContext, ImmutableSandboxedEnvironment)


@lru_cache(maxsize=8)
def _compiled(source: str) -> CodeType:
    """Return the code of a template, which every conversation runs anew: it belongs to no rendering."""
    return TemplateSandbox({}).compile(source)


class _Replaced(NodeTransformer):
    def visit_For(self, node: nodes.For) -> Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _EACH)
        return node

    def visit_Concat(self, node: nodes.Concat) -> Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Getitem(self, node: nodes.Getitem) -> Node:
        self.generic_visit(node)
        return _filtered(node, _MADE) if isinstance(node.arg, nodes.Slice) else node


def _filtered(value: Node, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with lists in the place of what can be read once only, so that their size is known."""
    return tuple(list(each) if isinstance(each, Iterator) else each for each in args)


def _require_plain(form: str) -> None:
    if _WIDE.search(form):
        raise TemplateLimit("it formats with too large a width")


def _now(form: str) -> str:
    _require_plain(form)
    return datetime.now().strftime(form)


def _refuse(message: str) -> Any:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value in JSON, by the arguments that Transformers gives this filter."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if not indent:
        return encoder.encode(value)
    if (indent if isinstance(indent, int) else len(indent)) > _WIDEST_INDENT:
        raise TemplateLimit("it indents too far")
    parts, n_chars = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        n_chars += len(part)
        if n_chars > _LARGEST:
            raise TemplateLimit("it makes too long a text")
    return "".join(parts)
