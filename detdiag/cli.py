"""The ``detdiag`` command; the only place that turns errors into exit codes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from detdiag import __version__
from detdiag.errors import DetdiagError, Exit

COMMANDS: Final = (
    "run",
    "audit",
    "diff",
    "fingerprint",
    "score",
    "incidents",
    "check",
    "report",
    "explain",
    "env",
)

app = typer.Typer(
    name="detdiag",
    help="Which layer made my LLM nondeterministic?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        print(f"detdiag {__version__}")
        raise typer.Exit(0)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_registered: set[str] = set()


def _register(words: Sequence[str]) -> None:
    """Add the command that ``words`` call, or all of them where help needs the list.

    Importing ten command modules costs more than the work of the quick ones.
    """
    called = words[0] if words else None
    names = (called,) if called in COMMANDS else COMMANDS
    for name in names:
        if name not in _registered and importlib.util.find_spec(f"detdiag.commands.{name}"):
            importlib.import_module(f"detdiag.commands.{name}").register(app)
            _registered.add(name)


def main() -> None:
    """Run the command line; exit with the codes of :class:`detdiag.errors.Exit`."""
    # Idle OpenMP threads sleep instead of spinning: the same arithmetic, and on a machine that is
    # busy with other work up to ten times faster. Read once, when torch loads its runtime.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _register(sys.argv[1:])
    try:
        code = app(standalone_mode=False)
    except DetdiagError as error:
        print(f"detdiag: {error}", file=sys.stderr)
        sys.exit(int(error.code))
    except KeyboardInterrupt:
        print("detdiag: interrupted", file=sys.stderr)
        sys.exit(int(Exit.INTERRUPTED))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(Exit.CLEAN))
    except Exception as error:  # noqa: BLE001
        _exit_for(error)
    sys.exit(int(code or 0))


def _exit_for(error: Exception) -> None:
    """Click's own errors keep their message; anything else is an internal error."""
    show = getattr(error, "show", None)
    if callable(show):
        show()
        sys.exit(int(getattr(error, "exit_code", Exit.USAGE)))
    if type(error).__name__ == "Abort":
        sys.exit(int(Exit.INTERRUPTED))
    if os.environ.get("DETDIAG_DEBUG"):
        raise error
    print(
        f"detdiag: internal error: {type(error).__name__}: {error} "
        "(set DETDIAG_DEBUG=1 for the trace)",
        file=sys.stderr,
    )
    sys.exit(int(Exit.INTERNAL))
