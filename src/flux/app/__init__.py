"""The composition root: configuration, the daemon, the embedded engine."""
