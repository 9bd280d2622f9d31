"""Topics: configuration, creation, deletion."""
