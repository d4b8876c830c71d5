"""GGUF files: their header, read by a reader that trusts none of its numbers, and what it says of the model."""
