"""What a language model, or another agent, may ask about a search, and what it may suggest."""
