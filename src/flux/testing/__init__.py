"""Fakes and contract suites, shipped for tests."""
