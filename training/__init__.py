"""How the demo family is made: from a folder of texts to three GGUFs and their card.

``python -m edge_spec.training --corpus FOLDER --out FOLDER``; README.md beside this file tells the rest.
An optional extra (``edge-spec[recipe]``): nothing else in the package imports it, and only training needs PyTorch.
"""

if __name__ != "edge_spec.training":
    raise ImportError("import edge_spec.training, not training")
