"""The registry: what the control plane knows of sandboxes, nodes and artifacts, in SQLite or PostgreSQL."""
