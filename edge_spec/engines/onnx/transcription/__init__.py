"""From GGUF to ONNX without requantising: the same weights, stored for ONNX Runtime."""

from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import (
    Transcription,
    check_transcription,
    read_transcription,
    transcribe,
)
from edge_spec.engines.onnx.transcription.graph import ATTENTION_HEADS, LANES
from edge_spec.engines.onnx.transcription.plan import refusal
from edge_spec.engines.onnx.transcription.weight_formats import FORMS, best_form

__all__ = [
    "ARCHITECTURES",
    "ATTENTION_HEADS",
    "FORMS",
    "LANES",
    "Transcription",
    "best_form",
    "check_transcription",
    "read_transcription",
    "refusal",
    "transcribe",
]
