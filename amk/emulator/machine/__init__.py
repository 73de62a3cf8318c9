"""A grid runs: warps, the order in which they take turns, what is reported."""
