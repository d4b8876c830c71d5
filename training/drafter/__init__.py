"""Making a drafter for any target: ``edge-spec drafter make MODEL --texts FOLDER --out FOLDER``.

The target answers prompts out of texts, and a small model of a trimmed vocabulary learns its distributions. It shares
the model, the trainer and the rounding to 4 bits with the recipe of the demo family.
"""
