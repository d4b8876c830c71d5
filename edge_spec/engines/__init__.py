"""Engines: what computes rows of logits. ``base`` is their interface, ``registry`` lists them."""
