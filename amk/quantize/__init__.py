"""Quantisers, and what they cost in accuracy."""
