"""Saved trees: what an overlay's writable layer held, kept as content-addressed layers (spec: generations, §6)."""
