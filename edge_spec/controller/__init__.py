"""The memory-budgeted controller: decides what to load, opens it, and gives memory up when it is scarce."""
