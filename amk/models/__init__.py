"""Models: what a configuration says, and the graph of a decoder layer that follows from it."""
