"""Artifacts on this machine and in the object store: uploaded, fetched, verified, removed (spec: generations, §6)."""
