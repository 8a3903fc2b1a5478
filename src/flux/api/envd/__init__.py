"""What the public E2B SDKs call inside a sandbox: processes, files, watching (spec: e2b, §4)."""
