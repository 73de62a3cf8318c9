"""PTX as text and as decoded programs."""
