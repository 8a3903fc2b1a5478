"""The control plane as the public E2B SDKs call it, and the way from their requests to a sandbox (spec: e2b)."""
