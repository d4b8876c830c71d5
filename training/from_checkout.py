"""Runs the recipe from a checkout that nobody has installed: ``python training/from_checkout.py ARGUMENTS``.

``python training/from_checkout.py parcels ARGUMENTS`` packs and unpacks.

Training needs only PyTorch and NumPy; a machine that is lent for it need not compile the rest of the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[0] = str(root)
    import edge_spec

    # The five folders of the package lie side by side in the checkout.
    edge_spec.__path__.append(str(root))
    from edge_spec.training import __main__ as recipe
    from edge_spec.training import parcels

    if sys.argv[1:2] == ["parcels"]:
        sys.exit(parcels.main(sys.argv[2:]))
    sys.exit(recipe.main())
