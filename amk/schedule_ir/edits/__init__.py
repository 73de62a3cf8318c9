"""Edits of a schedule as data: made to any schedule, composed, found between two schedules, shrunk."""
