"""The server that all servers share, and a client: asyncio around the sans-IO protocol."""
