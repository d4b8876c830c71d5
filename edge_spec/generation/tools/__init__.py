"""Tools: how they are shown to a model, which calls it may write, and how these are read off its answer."""
