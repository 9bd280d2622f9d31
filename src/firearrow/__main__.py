"""`python -m firearrow` is the `firearrow` command."""

import sys

from firearrow.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
