"""asyncio around the sans-IO protocol: the server that all servers share, and a client."""
