"""What authors of drafters and engines need to test them: a model that is known exactly, and the law of drafters."""

from edge_spec.testing.lossless import require_lossless
from edge_spec.testing.table_model import TableModel, random_table

__all__ = ["TableModel", "random_table", "require_lossless"]
