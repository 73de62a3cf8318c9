"""KNOWS what a proof is: checks certificates of schedules without anything of the validator."""
