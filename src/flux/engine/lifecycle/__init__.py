"""Create, find, run in and delete sandboxes; recover after a crash."""
