"""What the warps run: events, footprints, counters, flag words."""
