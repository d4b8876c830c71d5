"""Flags that compile the parts in C, by kind of compiler."""

from __future__ import annotations

__all__ = ["FLAGS"]

# Fused multiply-adds are written out where they are meant; a compiler must not make more of them,
# and nobody's CFLAGS may allow it to reorder sums.
FLAGS = {
    "msvc": ["/std:c11", "/O2", "/fp:precise"],
    "unix": ["-std=c11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fvisibility=hidden", "-g0"],
}
