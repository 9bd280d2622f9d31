"""A broker: a core, and a package for each of its features.

A package has its ``feature`` (state files, handlers by request code, listeners, services) and the modules behind it. A
request is added in one package, and in the row of its code (``wire.requests``).
"""
