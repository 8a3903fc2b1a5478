"""The files of a running sandbox, as one of its users names them: looked at, changed, carried, watched."""
