"""Bytes: how many there are, how many something will take, and saying no in time.

Knows no engine and no file format; it works on numbers handed to it.
"""

if __name__ != "edge_spec.memory":
    raise ImportError("import edge_spec.memory, not memory")

from edge_spec.memory.budget import format_size, parse_size
from edge_spec.memory.device import Device, Limit, Readings, limits, probe
from edge_spec.memory.estimate import require, vocabulary_bytes
from edge_spec.memory.footprint import Footprint
from edge_spec.memory.hardware import Hardware, HardwareReadings, describe
from edge_spec.memory.ledger import Ledger, Line, reserve_bytes
from edge_spec.memory.usage import Usage, usage

__all__ = [
    "Device",
    "Footprint",
    "Hardware",
    "HardwareReadings",
    "Ledger",
    "Limit",
    "Line",
    "Readings",
    "Usage",
    "describe",
    "format_size",
    "limits",
    "parse_size",
    "probe",
    "require",
    "reserve_bytes",
    "usage",
    "vocabulary_bytes",
]
