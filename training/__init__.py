"""Training of model families that share a vocabulary: from a folder of texts to three GGUFs and their card.

``python -m edge_spec.training --corpus FOLDER --out FOLDER``; README.md next to this file describes it. It is an
optional extra, ``training``: nothing else in the package imports it, and only it needs PyTorch. Where
nothing but PyTorch and NumPy is installed it trains as well; making a vocabulary and evaluating need the package.
"""

if __name__ != "edge_spec.training":
    raise ImportError("import edge_spec.training, not training")
