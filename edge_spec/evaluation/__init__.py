"""Measurements of loaded models: equal texts, speed, and acceptance."""
