"""From few layers and tokens to all, and counters that wrap."""
