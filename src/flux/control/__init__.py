"""The control plane: what a sandbox is, which generation and artifact are current, and which node runs it."""
