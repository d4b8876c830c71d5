"""Bytes: how many there are, how many something will take, and saying no in time.

Knows no engine and no file format; it works on numbers handed to it.
"""

if __name__ != "edge_spec.memory":
    raise ImportError("import edge_spec.memory, not memory")

from edge_spec.memory.device import Device, Readings, probe
from edge_spec.memory.estimate import kv_cache_bytes, logits_bytes, require

__all__ = ["Device", "Readings", "kv_cache_bytes", "logits_bytes", "probe", "require"]
