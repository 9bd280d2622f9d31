"""Read-only view of the files of a store, for offline tools and Spark's readers alike.

Nothing is locked, created or changed. Nothing here needs the engine, so importing it is cheap.
"""
