"""What a broker remembers between requests: topics, groups, offsets, clients, locks, settings."""
