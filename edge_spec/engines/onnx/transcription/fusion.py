"""Fuses nodes: runs of products, attention and what goes from row to row become one operator each.

ONNX Runtime takes some microseconds for every node, and its threads wait in between. So a graph is written node by
node, and then its runs of nodes that ``LayerRows`` knows (``kernels/src/layer_operator.c``) become one of it each;
other nodes stay as they are. What becomes of a node is said once, in ``_WRITERS``, for all architectures. All numbers
keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import (
    CONVOLVE_ROWS,
    DELTA_ROWS,
    DOMAIN,
    EXPERT_ROWS,
    GATHER_ROWS,
    LAYER_ROWS,
    MATMUL_ROWS,
)
from edge_spec.engines.onnx.transcription.proto import INT64, Graph, Node

__all__ = ["THREADS", "fuse"]

THREADS = "threads"
"""The input of a fused graph, i64 ``[1]``, that says how many threads of the session share the work of a run."""

(_PRODUCT, _ATTEND, _NORM, _NORM_IN_ORDER, _ADD, _MULTIPLY, _SCALE, _SIGMOID, _SILU, _GELU, _RELU, _COPY) = range(12)
"""The kinds of steps, see ``layer_operator.c``."""

_SCRATCH, _ROWS, _OUT, _CONSTANT = range(4)
"""Kinds of places."""

_MORE = 13
"""Numbers of a step that are its own."""

_RUN_WEIGHTS = 32 << 20
"""So many weights make a run long enough: what is beside it no longer counts, and a decode can be cancelled between
two."""

_IN_PLACE = (_ADD, _MULTIPLY, _SCALE, _SIGMOID, _SILU, _GELU, _RELU)
"""Steps that may write where they read."""

_MS = "com.microsoft"


@dataclass(frozen=True)
class _View:
    """Some numbers of every row of an array: side by side, or pieces as far apart from each other.

    Attributes:
        whole: the array's name.
        at: where they begin.
        n: how long a piece is.
        n_pieces: how many there are.
        apart: how far they are apart.
    """

    whole: str
    at: int
    n: int
    n_pieces: int = 1
    apart: int = 0

    @property
    def width(self) -> int:
        """Number of its numbers in a row."""
        return self.n * self.n_pieces

    @property
    def end(self) -> int:
        """Index after its last number."""
        return self.at + (self.n_pieces - 1) * self.apart + self.n


@dataclass(frozen=True)
class _Step:
    """A step of a run: an operation on rows.

    Attributes:
        n: how long a piece is.
        a, b: what it reads: views of rows, or a constant's name.
        y: what it writes.
        read: names of further inputs; "" for none.
        more: numbers that follow them.
    """

    what: int
    n: int
    a: _View
    y: _View
    b: _View | str = ""
    read: tuple[str, ...] = ()
    more: tuple[int, ...] = ()

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that it reads."""
        return (self.a.whole, *((self.b.whole,) if isinstance(self.b, _View) else ()))


def fuse(graph: Graph, ends: Collection[str] = (), *, visible: bool = False) -> None:
    """Replace runs of a graph's nodes, in place.

    Args:
        ends: arrays of which a run that is long enough computes one last.
        visible: further nodes may use these arrays, all of them.
    """
    fusion = _Fusion(graph, ends, visible=visible)
    for node in graph.nodes:
        fusion.take(node)
    graph.nodes[:] = fusion.nodes()
    used = {name for node in graph.nodes for name in node.inputs}
    for name in graph.constants.keys() - used:
        del graph.constants[name]


class _Fusion:
    """The fusion of one graph."""

    def __init__(self, graph: Graph, ends: Collection[str], *, visible: bool) -> None:
        self._graph = graph
        self._ends = frozenset(ends)
        self._wanted = {*graph.outputs, *(ends if visible else ())}
        self._widths = dict(graph.widths)
        self._views = {name: _View(name, 0, width) for name, width in self._widths.items()}
        self._steps: list[_Step] = []
        self._n_weights = 0
        self._parts: list[Node | list[_Step]] = []

    def take(self, node: Node) -> None:
        """Take the next node: into the run, if it can be one of its steps."""
        writer = _WRITERS.get((node.domain, node.operator))
        if writer is not None and writer(self, node):
            return
        for name in node.inputs:
            self._make_whole(name)
        self._end_run()
        self._parts.append(node)
        width = _GIVEN_WIDTHS[node.operator](self, node) if node.operator in _GIVEN_WIDTHS else 0
        if width:
            self._make(node.outputs[0], width)

    def nodes(self) -> list[Node]:
        """Return all nodes. Nothing may be taken after that."""
        for name in self._graph.outputs:
            self._make_whole(name)
        self._end_run()
        wanted = set(self._wanted)
        written: list[Node] = []
        for number, part in reversed(list(enumerate(self._parts))):
            node = part
            if not isinstance(node, Node):
                self._graph.takes(THREADS, INT64, (1,))
                node = _written(self._graph, f"run.{number}", node, self._widths, wanted)
            wanted.update(node.inputs)
            written.append(node)
        return written[::-1]

    def view(self, name: str) -> _View | None:
        """Return a row's numbers, side by side; None for what has no row for every token."""
        view = self._views.get(name)
        if view is None or view.n_pieces == 1:
            return view
        return self._copied(f"{name}.together", view)

    def whole(self, name: str) -> _View | None:
        """Return a row's numbers where they are all that an array has."""
        view = self.view(name)
        if view is None or (view.at == 0 and view.n == self._widths[view.whole]):
            return view
        return self._copied(f"{name}.whole", view)

    def step(self, step: _Step) -> bool:
        """Add a step that fills an array."""
        return self.steps([step])

    def steps(self, steps: Sequence[_Step]) -> bool:
        """Add steps that fill an array together."""
        y = steps[-1].y.whole
        self._make(y, max(step.y.end for step in steps))
        self._steps += steps
        self._n_weights += sum(step.n * step.y.n for step in steps if step.what == _PRODUCT)
        if y in self._ends and self._n_weights >= _RUN_WEIGHTS:
            self._end_run()
        return True

    def know(self, name: str, view: _View) -> bool:
        """Give numbers another name."""
        self._views[name] = view
        return True

    def pieces(self, name: str) -> _View | None:
        """Return a row's numbers as they lie."""
        return self._views.get(name)

    def numbers(self, name: str) -> npt.NDArray[Any] | None:
        """Return a constant."""
        return self._graph.arrays.get(name)

    def _make(self, name: str, width: int) -> None:
        self._widths[name] = width
        self._views[name] = _View(name, 0, width)

    def _copied(self, name: str, view: _View) -> _View:
        if name not in self._widths:
            self.steps([_Step(_COPY, view.n, view, _View(name, 0, view.n, view.n_pieces, view.n))])
        return self._views[name]

    def _make_whole(self, name: str) -> None:
        """Make an array of that name, which others than runs use."""
        view = self._views.get(name)
        if view is not None and view.whole != name:
            self._copied(name, view)

    def _end_run(self) -> None:
        if self._steps:
            self._parts.append(self._steps)
            self._steps = []
            self._n_weights = 0


def _elementwise(what: int) -> Callable[[_Fusion, Node], bool]:
    """Of one input."""

    def write(fusion: _Fusion, node: Node) -> bool:
        x = fusion.view(node.inputs[0])
        return x is not None and fusion.step(_Step(what, x.n, x, _View(node.outputs[0], 0, x.n)))

    return write


def _of_two(what: int) -> Callable[[_Fusion, Node], bool]:
    """Of rows and rows, or rows and a constant; one number may stand for as many as the others are."""

    def write(fusion: _Fusion, node: Node) -> bool:
        sides = [(fusion.view(name), fusion.numbers(name), name) for name in node.inputs]
        sides.sort(key=lambda side: (side[0] is None, -side[0].n if side[0] is not None else 0))
        (a, _, _), (rows, constant, name) = sides
        if a is None:
            return False
        n = rows.n if rows is not None else constant.size if constant is not None else 0
        by_one = what == _MULTIPLY and n == 1
        step = _Step(_SCALE if by_one else what, a.n, a, _View(node.outputs[0], 0, a.n), b=rows or name)
        return (by_one or n == a.n) and fusion.step(step)

    return write


def _silu(fusion: _Fusion, node: Node) -> bool:
    return node.attributes["alpha"] == 1 and _elementwise(_SILU)(fusion, node)


def _norm_step(what: int, node: Node, x: _View, weights: str, n: int) -> _Step:
    epsilon = node.attributes["epsilon"]
    assert isinstance(epsilon, float)
    bits = int(np.float32(epsilon).view(np.uint32))
    return _Step(what, n, x, _View(node.outputs[0], 0, n, x.n // n, n), b=weights, more=(x.n // n, bits))


def _norm(fusion: _Fusion, node: Node) -> bool:
    x, weights = fusion.view(node.inputs[0]), fusion.numbers(node.inputs[1])
    if x is None or weights is None or x.n % weights.size:
        return False
    return fusion.step(_norm_step(_NORM, node, x, node.inputs[1], weights.size))


def _norm_of_sum(fusion: _Fusion, node: Node) -> bool:
    x, added = fusion.view(node.inputs[0]), fusion.view(node.inputs[1])
    weights, total = fusion.numbers(node.inputs[2]), node.outputs[3]
    if x is None or added is None or weights is None or not x.n == added.n == weights.size:
        return False
    fusion.step(_Step(_ADD, x.n, x, _View(total, 0, x.n), b=added))
    return fusion.step(_norm_step(_NORM_IN_ORDER, node, _View(total, 0, x.n), node.inputs[2], x.n))


def _product(fusion: _Fusion, node: Node) -> bool:
    x, n_in, n_out = fusion.view(node.inputs[0]), node.attributes["n_in"], node.attributes["n_out"]
    assert isinstance(n_in, int)
    assert isinstance(n_out, int)
    y = _View(node.outputs[0], 0, n_out)
    return x is not None and x.n == n_in and fusion.step(replace(_Step(_PRODUCT, n_in, x, y), read=node.inputs[1:]))


def _attend(fusion: _Fusion, node: Node) -> bool:
    x, *read = node.inputs
    rows = fusion.whole(x)
    facts = [node.attributes.get(name, 0) for name in _HEADS]
    numbers = tuple(fact for fact in facts if isinstance(fact, int))
    y = _View(node.outputs[0], 0, numbers[0] * numbers[2])
    read += [""] * (_N_READ - len(read))
    return rows is not None and fusion.step(_Step(_ATTEND, rows.n, rows, y, read=tuple(read), more=numbers))


_HEADS = ("n_head", "n_head_kv", "head_dim", "interleaved", "window", "unseen")

_N_READ = 7
"""Number of arrays that attention reads besides rows."""


def _same(fusion: _Fusion, node: Node) -> bool:
    """Rows in another shape are the same numbers."""
    x = fusion.pieces(node.inputs[0])
    return x is not None and fusion.know(node.outputs[0], x)


def _split(fusion: _Fusion, node: Node) -> bool:
    x, sizes = fusion.view(node.inputs[0]), fusion.numbers(node.inputs[1])
    if x is None or sizes is None or x.n % int(sizes.sum()):
        return False
    apart, at = int(sizes.sum()), x.at
    for name, size in zip(node.outputs, map(int, sizes), strict=True):
        n_pieces = x.n // apart
        fusion.know(name, _View(x.whole, at, size, n_pieces, apart if n_pieces > 1 else 0))
        at += size
    return True


def _concat(fusion: _Fusion, node: Node) -> bool:
    views, at, steps = [fusion.view(name) for name in node.inputs], 0, list[_Step]()
    for view in views:
        if view is None:
            return False
        steps.append(_Step(_COPY, view.n, view, _View(node.outputs[0], at, view.n)))
        at += view.n
    return fusion.steps(steps)


_WRITERS: Mapping[tuple[str, str], Callable[[_Fusion, Node], bool]] = {
    (DOMAIN, MATMUL_ROWS): _product,
    (DOMAIN, "AttendRows"): _attend,
    ("", "SimplifiedLayerNormalization"): _norm,
    (_MS, "SkipSimplifiedLayerNormalization"): _norm_of_sum,
    ("", "Add"): _of_two(_ADD),
    ("", "Mul"): _of_two(_MULTIPLY),
    ("", "Sigmoid"): _elementwise(_SIGMOID),
    (_MS, "QuickGelu"): _silu,
    (_MS, "FastGelu"): _elementwise(_GELU),
    ("", "Relu"): _elementwise(_RELU),
    ("", "Reshape"): _same,
    ("", "Identity"): _same,
    ("", "Split"): _split,
    ("", "Concat"): _concat,
}
"""What becomes of a node in a run, by its domain and operator. Each returns whether the node can be in one."""


def _attribute(name: str) -> Callable[[_Fusion, Node], int]:
    def read(fusion: _Fusion, node: Node) -> int:
        value = node.attributes[name]
        return value if isinstance(value, int) else 0

    return read


def _of_input(i: int, parts: int = 1) -> Callable[[_Fusion, Node], int]:
    def read(fusion: _Fusion, node: Node) -> int:
        view = fusion.pieces(node.inputs[i])
        return view.width // parts if view is not None else 0

    return read


_GIVEN_WIDTHS: Mapping[str, Callable[[_Fusion, Node], int]] = {
    GATHER_ROWS: _attribute("n_in"),
    EXPERT_ROWS: _attribute("n_embd"),
    CONVOLVE_ROWS: _of_input(0, 3),
    DELTA_ROWS: _of_input(1),
}
"""How many numbers the rows have that other operators give."""


def _written(
    graph: Graph, name: str, steps: Sequence[_Step], widths: Mapping[str, int], wanted: Collection[str]
) -> Node:
    """Return a run as a node.

    Args:
        widths: of all arrays.
        wanted: the arrays that are used after the run.
    """
    made = dict.fromkeys(step.y.whole for step in steps)
    outputs = [array for array in made if array in wanted]
    inputs, places, known = list[str](), list[tuple[int, int, int]](), dict[str, int]()

    def input_of(each: str) -> int:
        if each not in inputs:
            inputs.append(each)
        return _N_FIRST + inputs.index(each)

    def place(each: str, kind: int, number: int, width: int) -> None:
        known[each] = len(places)
        places.append((kind, number, width))

    for number, array in enumerate(outputs):
        place(array, _OUT, number, widths[array])
    for array, at in _scratch(steps, [array for array in made if array not in outputs], widths):
        place(array, _SCRATCH, at, widths[array])
    for step in steps:
        for array in step.arrays:
            if array not in known:
                place(array, _ROWS, input_of(array), widths[array])
        if isinstance(step.b, str) and step.b and step.b not in known:
            place(step.b, _CONSTANT, input_of(step.b), graph.arrays[step.b].size)
    table = [_numbers(step, known, [input_of(each) if each else -1 for each in step.read]) for step in steps]
    return Node(
        LAYER_ROWS,
        (
            graph.constant(f"{name}.steps", np.array(table, np.int64)),
            graph.constant(f"{name}.places", np.array(places, np.int64)),
            THREADS,
            *inputs,
        ),
        tuple(outputs),
        DOMAIN,
    )


_N_FIRST = 3
"""Inputs of a run before its own: steps, places and threads."""


def _numbers(step: _Step, known: Mapping[str, int], read: Sequence[int]) -> list[int]:
    b = (known[step.b.whole], step.b.at) if isinstance(step.b, _View) else (known.get(step.b, 0), 0)
    if step.what == _COPY:
        more: Sequence[int] = (step.a.n_pieces, step.a.apart, step.y.apart)
    else:
        more = (*read, *step.more)
    numbers = [step.what, known[step.a.whole], step.a.at, *b, known[step.y.whole], step.y.at, step.n, *more]
    return numbers + [0] * (8 + _MORE - len(numbers))


def _scratch(steps: Sequence[_Step], arrays: Collection[str], widths: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield where arrays lie in a row of scratch memory: each where no other one is that is needed while it is, or over
    what it is computed from, number by number.

    Between products some rows may have taken all steps before others take the first one, so time goes by products and
    attention.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    last_step: dict[str, int] = {}
    now = 0
    for number, step in enumerate(steps):
        # A product's rows are quantized as the last of the steps before it.
        now += step.what == _ATTEND
        for array in step.arrays:
            last[array], last_step[array] = now, number
        now += step.what == _PRODUCT
        first.setdefault(step.y.whole, now)
        last[step.y.whole] = now
        now += step.what in (_PRODUCT, _ATTEND)
    placed: dict[str, int] = {}
    for number, step in enumerate(steps):
        array, over = step.y.whole, step.a.whole
        if array not in arrays or array in placed:
            continue
        at = 0
        if step.what in _IN_PLACE and over in placed and last_step[over] == number and widths[over] == widths[array]:
            at = placed[over]
        else:
            beside = [each for each in placed if last[each] >= first[array] and first[each] <= last[array]]
            for each in sorted(beside, key=placed.__getitem__):
                if at + widths[array] <= placed[each]:
                    break
                at = max(at, placed[each] + widths[each])
        placed[array] = at
        yield array, at
