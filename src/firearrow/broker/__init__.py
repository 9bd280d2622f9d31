"""One broker: its state, what it does for each request, and how that is put together."""
