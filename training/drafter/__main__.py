"""``python training/drafter``: teach a head on a machine that is lent for that alone; see training/README.md.

It takes PyTorch, NumPy, gguf, psutil and a checkout that nobody has installed. ``edge-spec drafter pack`` makes the
prompts.
"""

import sys
from importlib import import_module
from pathlib import Path

if not __package__:
    root = str(Path(__file__).resolve().parents[2])
    sys.path[0] = root
    import edge_spec.errors

    # In a checkout the folders of the package lie next to each other.
    edge_spec.__path__.append(root)

if __name__ == "__main__":
    sys.exit(import_module("edge_spec.training.drafter.teach_command").main())
