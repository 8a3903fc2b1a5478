"""The node manager: what runs here, fenced by generations and attempts (spec: generations)."""
