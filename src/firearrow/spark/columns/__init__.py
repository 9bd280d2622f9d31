"""Stored records as Arrow columns: finding the records, checking them, and one builder for each column."""
