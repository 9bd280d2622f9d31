"""Brokers with a role that controllers decide."""
