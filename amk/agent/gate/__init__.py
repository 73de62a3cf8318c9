"""From a design to a candidate that may run."""
