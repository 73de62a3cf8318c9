"""What this process runs: the version of the package, and since when. Whatever needs it imports nothing else."""

import time

__version__ = "0.1.0"
IMPORTED_NS = time.time_ns()
"""amk is imported: sources that were changed later are not those that run."""
