"""The name server: it tells clients the brokers of each topic."""
