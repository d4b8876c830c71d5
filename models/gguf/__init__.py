"""GGUF files: their header, read without trusting a single number in it."""
