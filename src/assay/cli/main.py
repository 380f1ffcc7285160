"""The command ``assay``: one small file per command, put together here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from assay import __version__
from assay.cli import (
    attack,
    calibrate,
    demo,
    doctor,
    exits,
    node,
    node_receive,
    poc,
    power,
    record,
    report,
    score,
    serve,
    verify,
)
from assay.errors import AssayError

app = typer.Typer(
    name="assay",
    help="Tells what an LLM server really runs: the model, the sampler, the compute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The order of the help: from a first look to daily use.
app.command("demo")(demo.demo)
app.command("serve", context_settings=serve.PASS_THROUGH)(serve.serve)
app.command("record")(record.record)
app.command("verify")(verify.verify)
app.command("score")(score.score)
app.command("calibrate")(calibrate.calibrate)
app.command("power")(power.power)
app.command("attack")(attack.attack)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
node.app.command("receive")(node_receive.receive)
app.add_typer(node.app, name="node")
app.add_typer(poc.app, name="poc")

# typer brings its own copy of click, so its exception classes are found through typer's names.
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
_CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Tells what an LLM server really runs: the model, the sampler, the compute."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 pass, 2 fail, 3 inconclusive, 1 error.

    Usage errors are errors (1): the usual 2 would read as a failed verification.
    """
    try:
        code = get_command(app).main(
            args=None if arguments is None else list(arguments),
            prog_name="assay",
            standalone_mode=False,
        )
    except AssayError as error:
        typer.echo(f"assay: {' '.join(str(error).split())}", err=True)
        return exits.ERROR
    except _USAGE_ERROR as error:
        typer.echo(f"assay: {error.format_message()} (see --help)", err=True)
        return exits.ERROR
    except _CLICK_ERROR as error:
        typer.echo(f"assay: {error.format_message()}", err=True)
        return exits.ERROR
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("assay: interrupted", err=True)
        return exits.ERROR
    return code if isinstance(code, int) else exits.PASS


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
