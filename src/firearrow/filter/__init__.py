"""Expressions over properties, for consumers that choose messages by more than tags."""
