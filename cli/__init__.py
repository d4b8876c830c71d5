"""The ``edge-spec`` command: one file per verb, no logic of its own."""

if __name__ != "edge_spec.cli":
    raise ImportError("import edge_spec.cli, not cli")

from edge_spec.cli.main import main

__all__ = ["main"]
