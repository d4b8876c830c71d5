"""What is measured about loaded models: equality of texts, speed, and acceptance."""
