"""Messages with a delay level."""
