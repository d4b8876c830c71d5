"""Published ONNX models, as hubs distribute them: a graph with past key values, and files beside it."""

from __future__ import annotations

from edge_spec.models.onnx.config_files import TOKENIZER
from edge_spec.models.onnx.folder import find_graph, inspect_published, published_texts
from edge_spec.models.onnx.signature import CachePort, PublishedGraph
from edge_spec.models.onnx.tokens import TokenizerSize

__all__ = [
    "TOKENIZER",
    "CachePort",
    "PublishedGraph",
    "TokenizerSize",
    "find_graph",
    "inspect_published",
    "published_texts",
]
