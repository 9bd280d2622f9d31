"""Transactions: half messages, their ends, checks back."""
