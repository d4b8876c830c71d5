"""Models on ONNX Runtime: GGUFs, transcribed, and published ONNX models as they are."""

from edge_spec.engines.onnx.footprint import onnx_footprint
from edge_spec.engines.onnx.model import OnnxModel
from edge_spec.engines.onnx.opening import open_onnx, open_published

__all__ = ["OnnxModel", "onnx_footprint", "open_onnx", "open_published"]
