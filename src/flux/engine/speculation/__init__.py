"""Speculate, decide, apply, revert, sweep."""
