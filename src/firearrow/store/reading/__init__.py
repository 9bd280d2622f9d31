"""Reads the files of a store as they are: what offline tools and Spark's readers stand on.

Nothing is locked, created or changed. Nothing here needs the engine, so importing it is cheap.
"""
