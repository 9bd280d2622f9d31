"""What asks a cluster for messages and gives it some: routes, offsets, pulls and sends.

Messages are bytes here, as they are stored and sent; whoever uses this makes of them what it needs.
"""
