"""``python -m edge_spec.training``; also ``python training`` in a checkout that nobody has installed.

The latter is for machines that are lent for training alone: it takes PyTorch and NumPy, and nothing is compiled.
"""

import sys
from importlib import import_module
from pathlib import Path

if not __package__:
    root = str(Path(__file__).resolve().parents[1])
    sys.path[0] = root
    import edge_spec.errors

    # In a checkout the folders of the package lie next to each other.
    edge_spec.__path__.append(root)

if __name__ == "__main__":
    sys.exit(import_module("edge_spec.training.command").main())
