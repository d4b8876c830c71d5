"""Attention that differs from layer to layer, as Gemma 4's does: heads of two sizes, and layers that read the keys and
values of others.

llama.cpp ends the process where these facts contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["layer_shapes", "wrong_shapes"]

_ARCHITECTURES = frozenset(("gemma4",))


def layer_shapes(
    architecture: str, windowed: Sequence[bool] | None, number: Callable[[str, int], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of attention by layer that the metadata state.

    Args:
        windowed: which layers have a window; None if the file does not tell it layer by layer.
        number: a number of the metadata by its key and a default.

    Returns:
        The width of a key and of a value, and the layer whose keys and values each reads, itself or an earlier one;
        empty where all layers are alike.
    """
    if architecture not in _ARCHITECTURES or windowed is None:
        return (), ()
    wide = number("attention.key_length", 0)
    own = len(windowed) - number("attention.shared_kv_layers", 0)
    dims = (number("attention.key_length_swa", wide), wide)
    sources = tuple(layer if layer < own else own - (2 if narrow else 1) for layer, narrow in enumerate(windowed))
    return tuple(dims[not narrow] for narrow in windowed), sources


def wrong_shapes(
    architecture: str, windowed: Sequence[bool] | None, n_head_kv: Sequence[int], number: Callable[[str, int], int]
) -> str | None:
    """Return a contradiction among the shapes, as a clause without its subject; None if there is none."""
    if architecture not in _ARCHITECTURES:
        return None
    if windowed is None:
        return "does not say layer by layer which ones have a window"
    lengths = [
        number(f"attention.{side}_length{end}", number(f"attention.{side}_length", 0))
        for end in ("", "_swa")
        for side in ("key", "value")
    ]
    if lengths[0] != lengths[1] or lengths[2] != lengths[3] or 0 in lengths:
        return f"has keys of {lengths[0]} and {lengths[2]} numbers and values of {lengths[1]} and {lengths[3]}"
    if not any(windowed):
        return "has no layer with a window"
    if not number("attention.sliding_window", 0):
        return "has layers with a window of no tokens"
    n_shared, n_layers = number("attention.shared_kv_layers", 0), len(windowed)
    if n_layers - n_shared < 2:
        return f"has {n_layers} layers, of which {n_shared} read the keys and values of others"
    for layer, source in enumerate(layer_shapes(architecture, windowed, number)[1]):
        if windowed[layer] != windowed[source] or n_head_kv[layer] != n_head_kv[source]:
            return f"has layer {layer} read the keys and values of layer {source}, which is of another shape"
    return None
