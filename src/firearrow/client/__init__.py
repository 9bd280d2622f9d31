"""Clients of a cluster: routes, offsets, pulls and sends.

Messages are bytes here, as they are stored and sent; the caller decodes them.
"""
