"""`python -m mee_utils COMMAND`: the commands of the companion (`companion.cli`)."""

import os
import sys

if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"  # they draw into files, whatever backend is set, or misspelt
    from .companion.cli import main

    sys.exit(main())
