"""The console: pages of a cluster for a browser, the same facts as JSON, and as tools for agents.

The console stands above the command line and adds no knowledge to it. The content of a page comes from a command of
`firearrow` with its table (`operations`), or from the sample of the cluster that all browsers share (`sampler`). A
change is such a command, too.
"""
