"""Sending stored messages again, each of them once: replay of chosen messages, restore of an archive."""
