"""``python -m edge_spec`` is the command ``edge-spec``."""

from edge_spec.cli import main

if __name__ == "__main__":
    main()
