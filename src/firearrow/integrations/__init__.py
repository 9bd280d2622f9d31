"""Integrations with other frameworks; each module needs its framework and is imported separately."""
