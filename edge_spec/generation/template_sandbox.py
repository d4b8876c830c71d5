"""The Jinja in which templates of model files run: sandboxed, and with limits of time, size and memory.

A template is a program by a stranger. It runs in this process, because every message is rendered by one, so nothing
that it asks for may take long or much. Whatever it makes passes through a meter, which refuses what would be too long
as a text, holds too large a number or is nested too deeply: so comparing, hashing, sorting or writing any value takes
a moment, and between two such operations the clock is looked at. What could make much of little, or takes the product
of its sizes, is refused by that product.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from itertools import chain
from time import monotonic
from types import CodeType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.filters import do_round
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["TemplateSandbox", "names_in"]

_SECONDS = 10.0
_LONGEST_SOURCE = 1 << 18
_MOST_NODES = 1 << 13
"""Of a template's syntax; compiling takes the square of some. Published ones have at most 1,301."""

_MADE_BYTES = 32 << 20
_MADE_PER_BYTE = 32
"""All values of a rendering may take so much, and so many times what the template is given."""

_LARGEST = 1 << 24
"""Characters that one operation may make, and that any value may have as a text besides what the template is given."""

_DEEPEST = 256
_LARGEST_INT = 1 << 60
"""Below the number that hashes are remainders of: whole numbers that share a hash take the square of their count."""

_FINEST = 300
"""Digits to which a number is rounded."""

_WIDEST_INDENT = 64
_BYTES_PER_ITEM = 64
_FEW, _BYTES_PER_VALUE = 8, 256
"""Values with more parts, or that lie in others, are measured once only; what it takes to know that."""


_REPEATING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "indent", "batch", "slice"))
_GROWING = _REPEATING | {"replace", "join", "format", "format_map", "translate", "truncate", "tojson", "sum", "hex"}
"""Methods and filters whose results can be as long as the product of what they are given, numbers included for some."""

_SEARCHING = frozenset(("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip", "trim"))
_MOST_SEARCHED = 1 << 30
"""Methods that can compare as many characters as that product, and how many they may."""

_CODING = frozenset(("encode", "decode"))
_ENCODINGS = frozenset(("utf-8", "utf8", "ascii", "latin-1", "strict", "ignore", "replace"))
"""Some take the square of a text's length, such as punycode."""

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
        self._deadline = monotonic() + _SECONDS
        # Lists and the like never change here, so each is measured once.
        self._measured: dict[int, tuple[Any, int, int]] = {}
        self._left = self._largest = 1 << 40
        size = self._size(given)
        self._left = _MADE_BYTES + _MADE_PER_BYTE * size
        self._largest = _LARGEST + size

    def tick(self, value: Any = None) -> Any:
        """Note that something is done with a value, and return it."""
        if monotonic() > self._deadline:
            raise TemplateLimit(f"it takes more than {_SECONDS:g} s")
        return value

    def used(self, *values: Any) -> None:
        """Note that something is done with values, which may not have been measured."""
        self.tick()
        if sum(map(self._size, values)) > self._largest:
            raise TemplateLimit("it makes too long a text")

    def shown(self, value: Any) -> Any:
        """Return a value that is to be written as text."""
        self.used(value)
        return value

    def made(self, value: Any) -> Any:
        """Note what an operation has made, and return it."""
        if isinstance(value, str | bytes | list | tuple | dict):
            parts = 0 if isinstance(value, str | bytes) else len(value)
            self._take(sys.getsizeof(value) + _BYTES_PER_ITEM * parts)
        self.used(value)
        return value

    def before(self, operands: Iterable[Any], *, repeats: bool, most: int = 0) -> None:
        """Refuse an operation whose result could be too long; numbers are counts where it ``repeats``.

        Args:
            most: how long it may be, if not as long as any value.
        """
        self.tick()
        product = 1
        for operand in operands:
            is_count = repeats and isinstance(operand, int)
            product *= max(1, abs(operand) if is_count else self._size(operand))
            if product > (most or self._largest):
                raise TemplateLimit("it makes too long a text")

    def _take(self, n_bytes: int) -> None:
        self._left -= n_bytes
        if self._left < 0:
            raise TemplateLimit("it makes too much text")

    def _size(self, value: Any) -> int:
        """Return how long a value is as a text, roughly, which names what is in it as often as it occurs."""
        return self._measure(value, 0)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, int]:
        """Return how long a value is as a text, and how deeply it is nested.

        Args:
            depth: how many values it lies in.

        Raises:
            TemplateLimit: too long or too deep, or too large a number is in it.
        """
        height = 0
        if isinstance(value, str | bytes):
            size = 8 + len(value)
        elif isinstance(value, int):
            size = 8
            if not -_LARGEST_INT < value < _LARGEST_INT:
                raise TemplateLimit("it computes with too large a number")
        elif isinstance(value, range):
            size = 8 * (1 + len(value))
            self._measure(value.start, depth)
            self._measure(value.stop, depth)
        elif not isinstance(value, Mapping | MappingView | list | tuple | set | frozenset):
            return 8, 0
        elif (known := self._measured.get(id(value))) is not None:
            _, size, height = known
        else:
            size = 8
            if depth == _DEEPEST:
                raise TemplateLimit("it nests values too deeply")
            parts: Iterable[Any] = (
                chain(value.keys(), value.values()) if isinstance(value, Mapping) else value  # type: ignore[assignment]
            )
            for each in parts:
                each_size, each_height = self._measure(each, depth + 1)
                size += each_size
                height = max(height, 1 + each_height)
                if size > self._largest:
                    break
            if depth or len(value) > _FEW:
                # It is kept, too, so that its address stays its own.
                self._take(sys.getsizeof(value) + _BYTES_PER_VALUE)
                self._measured[id(value)] = value, size, height
        if size > self._largest:
            raise TemplateLimit("it makes too long a text")
        if depth + height > _DEEPEST:
            raise TemplateLimit("it nests values too deeply")
        return size, height


class _Namespace(Namespace):
    """Jinja's, whose text would show all that is in it."""

    def __repr__(self) -> str:
        return "<Namespace>"


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
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Namespace}
        del self.globals["lipsum"]
        # Jinja's own filter escapes for HTML, but this is for a model.
        self.filters |= {"tojson": _to_json, "round": _rounded}
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters = {name: self._metered(name, each) for name, each in self.filters.items()}
        self.filters |= {_EACH: self._each, _JOINED: self._joined, _MADE: meter.made, _TICK: meter.tick}
        self.tests = {name: self._metered(name, each) for name, each in self.tests.items()}
        self.concat = self._joined  # type: ignore[method-assign]

    def rendered(self, source: str, given: Mapping[str, Any]) -> str:
        """Return what a template makes of the values.

        Raises:
            TemplateError and anything else: it is broken, refuses them, or wants too much.
        """
        _require_short(source)
        return self.template_class.from_code(self, _compiled(source), self.make_globals(None)).render(given)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Let what has no hook of its own pass through filters: loops, joined texts, slices."""
        parsed = super()._parse(source, name, filename)
        if sum(1 for _ in parsed.find_all(nodes.Node)) > _MOST_NODES:
            raise TemplateLimit("it is too long a program")
        _Replaced().visit(parsed)
        return parsed

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            yield self._meter.shown(value)

    def _joined(self, values: Iterable[Any]) -> str:
        parts = []
        for value in values:
            parts.append(self._meter.made(str(self._meter.shown(value))))
        return str(self._meter.made("".join(parts)))

    def _metered(self, name: str, function: Any) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name in _GROWING:
                args = _listed(args)
            given = [each for each in (*args, *kwargs.values()) if not isinstance(each, _OWN)]
            self._require_small(name, given)
            made = function(*args, **kwargs)
            return self._each(made) if isinstance(made, Iterator) else self._meter.made(made)

        return metered

    def _require_small(self, name: str, given: Sequence[Any]) -> None:
        """Refuse a method, filter or test that would take long, or make much, with what it is given."""
        self._meter.used(*given)
        if name.startswith("format") and given:
            _require_plain(str(given[0]))
        if name in _GROWING:
            self._meter.before(given, repeats=name in _REPEATING)
        if name in _SEARCHING:
            self._meter.before(given, repeats=False, most=_MOST_SEARCHED)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._meter.tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._meter.tick()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, type):
            # Through a type, methods would change what nothing may change: dict.update(message, ...).
            return attr == "fromkeys"
        return attr not in _LEFT_OUT and super().is_safe_attribute(obj, attr, value)

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
        given = [*args, *(each for key, each in kwargs.items() if key not in _JINJAS)]
        if name in _CODING and not all(each in _ENCODINGS for each in given):
            raise TemplateLimit("it uses an unusual encoding")
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", "")
        __self._require_small(name, (owner, *given))
        return __self._meter.made(super().call(__context, __obj, *args, **kwargs))


_EACH, _JOINED, _MADE, _TICK = " each", " joined", " made", " tick"
"""Filters that no template can name."""

_JINJAS = frozenset(("_loop_vars", "_block_vars"))
"""Arguments that Jinja adds to every call."""

_OWN = (Context, nodes.EvalContext, ImmutableSandboxedEnvironment)


@lru_cache(maxsize=8)
def names_in(source: str) -> frozenset[str]:
    """Return the names that a template looks for, whether it is given them or not.

    Raises:
        TemplateError and others: it is broken, or too long.
    """
    _require_short(source)
    return frozenset(find_undeclared_variables(TemplateSandbox({}).parse(source)))


def _require_short(source: str) -> None:
    if len(source) > _LONGEST_SOURCE:
        raise TemplateLimit(f"it has more than {_LONGEST_SOURCE >> 10} KiB")


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

    def visit_List(self, node: nodes.List | nodes.Dict) -> Node:
        self.generic_visit(node)
        return _filtered(node, _MADE)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else _filtered(node, _MADE)

    def visit_Pair(self, node: nodes.Pair) -> Node:
        self.generic_visit(node)
        node.key = _filtered(node.key, _TICK)
        return node

    def visit_Compare(self, node: nodes.Compare) -> Node:
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _TICK)
        return node


def _filtered(value: Node, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with lists in the place of what can be read once only, so that their size is known."""
    return tuple(list(each) if isinstance(each, Iterator) else each for each in args)


def _rounded(value: Any, precision: int = 0, method: str = "common") -> Any:
    if not abs(precision) <= _FINEST:
        raise TemplateLimit("it rounds too finely")
    return do_round(value, precision, method)  # type: ignore[arg-type]


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
