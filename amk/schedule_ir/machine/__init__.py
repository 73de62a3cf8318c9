"""Parts of the machine that executes a schedule in numpy: memory, program counters, streams, interleavings."""
