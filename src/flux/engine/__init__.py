"""The operations: reads, asks core, acts."""
