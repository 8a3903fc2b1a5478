"""Suites that every implementation of a port must pass, as mixins for test classes."""
