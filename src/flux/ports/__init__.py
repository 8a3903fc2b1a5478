"""Protocols where reality is plural or dangerous: clocks, files, substrates."""
