"""Measuring pairs of candidates, on GPUs and on the simulator."""
