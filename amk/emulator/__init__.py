"""Runs the compiled PTX of a whole grid on the CPU. It decides nothing: it executes, and reports what it sees."""
