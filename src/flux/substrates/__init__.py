"""What runs sandboxes."""
