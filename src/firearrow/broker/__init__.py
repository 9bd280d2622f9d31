"""A broker: a core, and a package for each of its features.

Each package has a ``feature`` (state files, handlers by request code, listeners, services) and the modules behind it. A
new request is added in one package, and in the row of its code (``wire.requests``).
"""
