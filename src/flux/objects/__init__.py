"""Object stores: where artifacts are kept beyond one machine: a directory, or S3."""
