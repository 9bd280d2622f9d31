"""`python -m firearrow` is the `firearrow` command."""

import sys

from firearrow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
