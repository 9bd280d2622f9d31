"""Pull consumers, the pull loops of both kinds of consumer, and readers of whole ranges of a queue."""
