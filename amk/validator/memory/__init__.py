"""Accesses in order: races, reads-from, rules of the memory model."""
