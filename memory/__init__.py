"""Memory in bytes: how much there is, who holds it, and errors for what does not fit.

Knows no engine and no file format: it works with numbers that it is given.
"""

if __name__ != "edge_spec.memory":
    raise ImportError("import edge_spec.memory, not memory")

from edge_spec.memory.budget import Footprint, format_size, parse_size, reserve_bytes
from edge_spec.memory.device import Device, Limit, Readings, limits, probe, require
from edge_spec.memory.hardware import Hardware, describe
from edge_spec.memory.ledger import Ledger, Line
from edge_spec.memory.loan import Loan
from edge_spec.memory.usage import Usage, usage

__all__ = [
    "Device",
    "Footprint",
    "Hardware",
    "Ledger",
    "Limit",
    "Line",
    "Loan",
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
]
