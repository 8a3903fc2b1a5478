"""REST /v1 over HTTP."""
