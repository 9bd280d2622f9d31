"""Routes of topics: name servers, caches of routes, and the queues that a route describes."""
