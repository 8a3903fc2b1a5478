"""Filesystem truth: scan, copy engines, capture, stage, journal, apply."""
