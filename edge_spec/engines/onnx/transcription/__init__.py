"""From GGUF to ONNX without requantising: the same weights, stored for ONNX Runtime."""
