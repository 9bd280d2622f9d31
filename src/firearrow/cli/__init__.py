"""The command line: `firearrow serve`, `firearrow namesrv`, `firearrow broker`."""

EMBEDDED_STORE = "data/store"
"""Where `firearrow serve` has its store by default, below the working directory."""

INTERRUPTED = 130
"""The exit code of a command that SIGINT ends, as shells have it: 128 and the signal's number."""

INTERRUPTED_LINE = "firearrow: interrupted\n"
