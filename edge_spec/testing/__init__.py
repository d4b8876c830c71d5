"""Tools to test drafters and engines: a model with an exactly known distribution, and the law of drafters."""

from edge_spec.testing.lossless import require_lossless
from edge_spec.testing.table_model import TableModel, random_table

__all__ = ["TableModel", "random_table", "require_lossless"]
