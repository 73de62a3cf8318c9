"""`python -m amk`."""

import sys

from amk.cli import main

sys.exit(main())
