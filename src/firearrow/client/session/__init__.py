"""A client of a cluster: its connections, heartbeats and identity, and the requests of brokers to it."""
