"""The `tsdae` command: arguments in, text out. The only place that prints and that configures logging."""
