"""Sends: the way of a message into the log."""
