"""The commands, and what is said where one of them fails."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import import_module

import click
from rich.logging import RichHandler
from rich.text import Text

from polyop import __version__
from polyop.cli.console import ERR, report
from polyop.ir.errors import InternalError, PolyopError, UserError

COMMANDS = {
    "bench": ("bench", "bench_", "Time operators beside NumPy, PyTorch and others."),
    "cache": ("look", "cache_", "Say where compiled kernels are kept, or remove them."),
    "check": ("look", "check", "Say what is inferred about operators, and what is wrong."),
    "demo": ("demo", "demo_", "Compile, run, check and time operators of real networks."),
    "explain": ("look", "explain", "Say why a kernel is the way it is."),
    "library": ("look", "library", "List the standard operators, or print one of them."),
    "run": ("run", "run", "Run an operator on .npy files or random inputs."),
    "show": ("look", "show", "Print what a stage of the compiler made of an operator."),
    "targets": ("look", "targets", "List what can be compiled for, and what runs here."),
}
"""name -> the file and the function of a command, and what it does in a few words."""


class Commands(click.Group):
    """Commands that are imported when they are asked for: all of them take 0.6 s together, and a list of them 0.1."""

    def list_commands(self, _: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        file, function, _said = COMMANDS[name]
        found: click.Command = getattr(import_module(f"polyop.cli.{file}"), function)
        return found

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_file, _function, said) in sorted(COMMANDS.items())])


def answer(arguments: list[str] | None) -> int:
    """The exit status of a command; whatever was wrong has been said.

    Raises KeyboardInterrupt, if the user stopped it.
    """
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=ERR, show_time=False, show_path=False)])
    try:
        status = commands(args=arguments, prog_name="polyop", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        report(error.diagnostic)
    except InternalError as error:
        ERR.print(Text(f"error: a bug of polyop, please report it: {error}", "bold red"))
    except (PolyopError, MemoryError, OSError) as error:
        ERR.print(Text(f"error: {_said(error)}", "bold red"))
    except Exception as error:  # nobody gets a traceback unasked
        ERR.print(Text(f"error: a bug of polyop, please report it: {type(error).__name__}: {error}", "bold red"))
        if logging.getLogger("polyop").isEnabledFor(logging.DEBUG):
            ERR.print(Text(traceback.format_exc()))
    return 1


def _said(error: Exception) -> str:
    """What `error` says: of the system's, the file and the reason, without the number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="polyop")
@click.option("--debug", is_flag=True, help="Say more when something goes wrong.")
def commands(debug: bool) -> None:
    """Einstein notation to fast, proven kernels.

    FILE is a .pop file, "-", or the name of a file or an operator of the standard library, as in `polyop run softmax`.
    """
    logging.getLogger("polyop").setLevel(logging.DEBUG if debug else logging.WARNING)
