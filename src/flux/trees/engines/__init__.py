"""The ways to give a run a throwaway copy of a workspace."""
