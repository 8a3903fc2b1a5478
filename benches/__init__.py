"""Measured comparisons: each prints its time, that of a peer or bare primitive from the same run, and the ratio."""
