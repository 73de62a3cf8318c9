"""Memory, who has seen what of it, and races."""
