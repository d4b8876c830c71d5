"""GGUF models on llama.cpp.

The library's low-level functions are named only in this package, and its failures become edge-spec's errors here.
"""

from edge_spec.engines.llama.context import LlamaModel
from edge_spec.engines.llama.footprint import DryModel, llama_footprint
from edge_spec.engines.llama.opening import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.llama.weights import LlamaWeights

__all__ = ["DryModel", "LlamaModel", "LlamaSettings", "LlamaWeights", "llama_footprint", "open_llama"]
