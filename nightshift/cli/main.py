"""The `nightshift` command and its handling of errors.

Each command has a file and imports what it needs when it runs, so that `--help` is quick.
"""

import errno
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nightshift.cli import conformance, dlq, jobs, models, webhooks, workers
from nightshift.cli.admin import audit, keys, tenants, upstreams, usage
from nightshift.cli.bulk import estimate, run
from nightshift.cli.doctor.command import doctor
from nightshift.cli.processes import up, worker
from nightshift.cli.schedules import commands as schedules
from nightshift.cli.session import advice_on_database
from nightshift.cli.terminal import EXIT_FAILED, describe, fail
from nightshift.cli.top import command as top
from nightshift.errors import DatabaseUnavailable, DatabaseUnusable, InvalidSetting, NightshiftError
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNREACHABLE_EXIT
from nightshift.process.starting import bound_integers


class Commands(TyperGroup):
    """All commands. What is wrong with an option is said without pydantic's words before it."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="nightshift",
    cls=Commands,
    help="Self-hosted, queue-based batch inference: jobs in, one recorded result per row out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # plain text wraps at any width and shows [default: …]
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("worker")(worker.worker)
app.command("run", context_settings={"allow_extra_args": True})(run.run)
app.command("estimate", context_settings={"allow_extra_args": True})(estimate.estimate)
app.add_typer(jobs.app, name="jobs")
app.add_typer(schedules.app, name="schedules")
app.add_typer(dlq.app, name="dlq")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.command("usage")(usage.usage)
app.command("audit")(audit.audit)
app.add_typer(models.app, name="models")
app.add_typer(workers.app, name="workers")
app.add_typer(upstreams.app, name="upstreams")
app.add_typer(webhooks.app, name="webhooks")
app.command("top")(top.top)
app.command("doctor")(doctor)
app.command("conformance")(conformance.conformance)

SERVER_UNREACHABLE = "server_unreachable"  # the client's code; an orchestrator tries again
OWN_PACKAGES = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")

# Advice on errors of the operating system that no command can mend.
_ANOTHER_USER = "run this as the user that runs the service, or name another directory in NIGHTSHIFT_DATA_DIR"
_NO_ROOM = "make room there, and run this again"
ABOUT_THE_DISK = {
    errno.EACCES: _ANOTHER_USER,
    errno.EPERM: _ANOTHER_USER,
    errno.EROFS: "name a directory that can be written to",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nightshift {importlib.metadata.version('nightshift')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of `nightshift` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Always ends by raising SystemExit."""
    bound_integers()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="nightshift")
    except (InvalidSetting, DatabaseUnusable) as error:
        fail(describe(error), CONFIGURATION_EXIT)
    except DatabaseUnavailable as error:
        # Without a cause it is no error of the driver's: the server answers.
        fail(f"{describe(error)}{advice_on_database() if error.__cause__ else ''}")
    except NightshiftError as error:
        is_unreachable = error.code == SERVER_UNREACHABLE
        fail(describe(error), UNREACHABLE_EXIT if is_unreachable else EXIT_FAILED)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in OWN_PACKAGES:
            raise
        fail(f"this command needs {error.name}, which is not installed: pip install '.[all]' in a checkout")
    except OSError as error:
        if error.errno not in ABOUT_THE_DISK:
            raise
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{error.strerror}: {ABOUT_THE_DISK[error.errno]}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
