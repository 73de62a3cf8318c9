"""Text to tokens and back; foreign code runs in a process of its own."""
