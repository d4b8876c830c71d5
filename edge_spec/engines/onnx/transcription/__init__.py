"""From GGUF to ONNX without requantising: the same weights, stored for ONNX Runtime."""

from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import (
    Transcription,
    check_transcription,
    read_transcription,
    transcribe,
)
from edge_spec.engines.onnx.transcription.graph import ATTENTION_HEADS, LANES

__all__ = [
    "ARCHITECTURES",
    "ATTENTION_HEADS",
    "LANES",
    "Transcription",
    "check_transcription",
    "read_transcription",
    "transcribe",
]
