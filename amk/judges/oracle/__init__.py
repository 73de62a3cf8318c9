"""The judge of the suite: definitions evaluated directly, sharing nothing with how the validator decides."""
