"""The name server: it answers which broker has which topic."""
