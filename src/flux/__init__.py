"""Flux: sandboxes whose commands are speculated, reviewed and applied."""

__version__ = "0.1.0"
