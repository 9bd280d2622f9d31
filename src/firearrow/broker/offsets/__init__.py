"""Progress of consumer groups: committed offsets, resets, lag."""
