"""The surfaces of a running engine."""
