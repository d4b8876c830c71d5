"""Models on ONNX Runtime: GGUFs, transcribed, and published ONNX models as they are."""
