"""Discrete-event timing of schedules, from per-target constants. Everything it returns is simulated."""
