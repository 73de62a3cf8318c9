"""The Python interface: `loading` makes a model ready to answer, `schedules` plans, verifies and simulates.

Every error that a caller can cause is an `AmkError` with the diagnostics that the command line prints.
"""
