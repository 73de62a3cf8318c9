"""The public benchmark: see card.md."""
