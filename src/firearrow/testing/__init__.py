"""Help for tests of what stands on Firearrow, and of Firearrow itself."""
