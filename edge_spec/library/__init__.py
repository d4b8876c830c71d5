"""Models on this computer: find, describe, download and pair them."""
