"""Commands that run servers: name servers, controllers and brokers, one or several in a process."""
