"""Slaves that act for a master that is away."""
