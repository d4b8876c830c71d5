"""Multiplication of a few rows with quantized or plain weights, near the speed of memory, in C.

A verification step multiplies the same weights with a few rows. These kernels read and unpack each weight once for all
of them, so that a few rows cost little more than one. ONNX Runtime uses them as custom operators (domain
``edge_spec``):

    MatMulRows(x f32 [..., n_in], packed u8 [bytes]) -> f32 [..., n_out]     attributes n_in, n_out, variant
    GatherRows(ids i64 [...], packed u8 [bytes]) -> f32 [..., n_in]          attributes n_in, n_out

and ``ExpertRows``, which multiplies each row with the experts that it chooses (``src/experts.h``), ``AttendRows``
(``src/attention.h``), ``ConvolveRows`` (``src/convolution.h``), ``DeltaRows`` (``src/delta.h``), and ``LayerRows``,
which is a run of all that goes from row to row, products and attention in one call, on as many threads as an input says
(``src/layer_operator.c``). A graph that uses them imports version 1 of that domain, and keeps packed weights as
initializers, which ONNX Runtime maps from external data. GatherRows reads an embedding from the same packed weights
that MatMulRows multiplies with as the output layer. The session's options must know the library before the session is
made:

    options.register_custom_ops_library(str(edge_spec.engines.onnx.kernels.library_path()))

``packed`` comes from ``pack``: GGUF's blocks in another order, no value rounded. With quantized weights activations
are rounded to 8 bits, 32 at a time; with floats they stay as they are. A row's result is the same bits whatever the
CPU, the variant, the threads and the other rows are; ``src/rows.h`` defines the order of summation, ``src/layout.h``
the layout, ``src/shared.h`` the kinds of weights, ``src/activations.h`` the rounding. The reference is the variant of
that name (``src/reference.c``), which runs everywhere, slowly: tests compare all others with it, bit for bit.

A row of activations that holds a NaN or an infinity gets NaN outputs with quantized weights, all of them 0x7fc00000;
other rows are untouched. With floats, and for NaN or infinite scales, outputs are what IEEE arithmetic gives, NaNs
again as 0x7fc00000.
"""

from edge_spec.engines.onnx.kernels.library import (
    available,
    can_drop_pages,
    copy_cells,
    features,
    keep_features,
    library_path,
    read_features,
    why_slow,
)
from edge_spec.engines.onnx.kernels.packing import GROUP, KINDS, pack, packed_bytes
from edge_spec.engines.onnx.kernels.shared import FLOATS, NUMBERS

__all__ = [
    "CONVOLVE_ROWS",
    "DELTA_ROWS",
    "DOMAIN",
    "EXPERT_ROWS",
    "FLOATS",
    "GATHER_ROWS",
    "GROUP",
    "KINDS",
    "LAYER_ROWS",
    "MATMUL_ROWS",
    "NUMBERS",
    "available",
    "can_drop_pages",
    "copy_cells",
    "features",
    "keep_features",
    "library_path",
    "pack",
    "packed_bytes",
    "read_features",
    "why_slow",
]

DOMAIN = "edge_spec"
MATMUL_ROWS = "MatMulRows"
GATHER_ROWS = "GatherRows"
EXPERT_ROWS = "ExpertRows"
CONVOLVE_ROWS = "ConvolveRows"
DELTA_ROWS = "DeltaRows"
LAYER_ROWS = "LayerRows"
