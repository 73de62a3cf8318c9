"""Integer and floating point instructions of one lane."""
