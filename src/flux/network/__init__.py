"""What leaves a sandbox: enforced and observed."""
