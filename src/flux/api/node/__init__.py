"""The gRPC service between a control plane and its nodes."""
