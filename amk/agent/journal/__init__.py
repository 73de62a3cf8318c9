"""What a run writes down, and the state that follows from it."""
