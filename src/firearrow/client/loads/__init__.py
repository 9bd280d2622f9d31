"""Loads on any cluster: so many at once or so many a second, and how long each took."""
