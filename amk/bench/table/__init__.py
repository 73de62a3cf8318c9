"""Cases, their rows, and what is made of rows."""
