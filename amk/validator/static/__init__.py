"""What the schedule says by itself, before anything runs."""
