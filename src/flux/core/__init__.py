"""Pure values and decisions. Nothing here does I/O, reads a clock or makes an id."""
