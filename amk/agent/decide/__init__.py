"""What is kept, and what the measurements say of the rest."""
