"""Care of the store: healing, catching up, writes of state files."""
