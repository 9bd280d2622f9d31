"""The console: pages of a cluster for a browser, the same facts as JSON, and as tools for agents.

The console stands above the command line and has no knowledge of its own: what a page shows or changes is a command
of `firearrow` with its table (`operations`), or the sample of the cluster that all browsers share (`sampler`).
"""
