"""Expressions over properties, by which consumers choose messages beyond tags."""
