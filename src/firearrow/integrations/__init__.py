"""What other frameworks plug in; each module needs its framework and is imported by itself."""
