"""The version of the package, by itself so that whatever needs it imports nothing else."""

__version__ = "0.1.0"
