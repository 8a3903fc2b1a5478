"""Process trees in their own namespaces over one workspace tree."""
