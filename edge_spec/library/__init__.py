"""Which models are on this computer, what they are, and what fits them."""
