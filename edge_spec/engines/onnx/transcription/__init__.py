"""From GGUF to ONNX without requantizing: the same weights, stored for ONNX Runtime."""
