"""Judges that start from a schedule and end with tokens: they run it, and compare with a plain forward pass."""
