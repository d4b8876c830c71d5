"""From GGUF to ONNX without requantising: the same weights, stored for ONNX Runtime."""

from edge_spec.models.transcribe.architecture import ARCHITECTURES
from edge_spec.models.transcribe.cache import Transcription, check_transcription, read_transcription, transcribe
from edge_spec.models.transcribe.forms import FORMS, best_form
from edge_spec.models.transcribe.graph import LANES
from edge_spec.models.transcribe.plan import refusal

__all__ = [
    "ARCHITECTURES", "FORMS", "LANES", "Transcription", "best_form", "check_transcription", "read_transcription",
    "refusal", "transcribe",
]  # fmt: skip
