"""The command line: `firearrow serve`, `firearrow namesrv`, `firearrow broker`."""
