"""Administration of a broker: configuration, status, cleaning."""
