"""Commands on messages: send, read, find, trace and resend; dead letters, and benchmarks."""
