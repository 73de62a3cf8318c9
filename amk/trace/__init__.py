"""Timelines: of a schedule in logical order, of a witness, and of a launch that was recorded on a GPU."""
