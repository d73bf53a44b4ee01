"""`millstream worker`: run, scale."""

from __future__ import annotations

import typer

from millstream.cli.support.failure import EXIT_CODES_HELP
from millstream.cli.worker.run import run
from millstream.cli.worker.scale import scale

app = typer.Typer(
    no_args_is_help=True, help="Run workers, and tell how many of them the lag asks for."
)
app.command(epilog=EXIT_CODES_HELP)(run)
app.command(epilog=EXIT_CODES_HELP)(scale)
