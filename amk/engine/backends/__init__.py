"""What computes tokens: numpy, the interpreter, a GPU."""
