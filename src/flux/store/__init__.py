"""What is kept: SQL tables, changeset directories, the audit log."""
