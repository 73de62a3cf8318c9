"""Weights: the matrices of a model, their formats, and the bytes of packed chunks."""
