"""The name server: which broker has which topic, told to whoever asks."""
