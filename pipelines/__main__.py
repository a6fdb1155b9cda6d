"""`python -m pipelines` is the `tsdae` command, for places where only the source tree is at hand."""

from pipelines.cli.main import main

main()
