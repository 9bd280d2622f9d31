"""Brokers whose role controllers decide."""
