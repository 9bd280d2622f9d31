"""Command line of Firearrow: servers, administration, messages, offline stores and Spark jobs."""

EMBEDDED_STORE = "data/store"
"""Default store directory of `firearrow serve`, below the working directory."""

INTERRUPTED = 130
"""Exit code of a command that SIGINT ends, as in shells: 128 plus the number of the signal."""

INTERRUPTED_LINE = "firearrow: interrupted\n"
