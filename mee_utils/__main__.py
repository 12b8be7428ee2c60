"""`python -m mee_utils COMMAND`: the commands of the companion (`companion.cli`)."""

import sys

from .companion.cli import main

if __name__ == "__main__":
    sys.exit(main())
