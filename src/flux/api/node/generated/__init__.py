"""Python form of the gRPC contract, written by ``make proto``, and so not held to the house rules."""
