"""What the kernel is timed beside."""
