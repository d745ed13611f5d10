"""The whole of it: real processes, real clients."""
