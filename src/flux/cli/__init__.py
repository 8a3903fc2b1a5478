"""The fluxctl command line, one file per command group."""
