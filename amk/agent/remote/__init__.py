"""The search for other agents."""
