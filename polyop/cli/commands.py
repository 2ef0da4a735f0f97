"""The commands, and what is said where one of them fails."""

from __future__ import annotations

import logging
import os
import sys
import traceback

import click
from rich.logging import RichHandler
from rich.text import Text

from polyop import __version__
from polyop.cli.bench import bench_
from polyop.cli.console import ERR, report
from polyop.cli.demo import demo_
from polyop.cli.look import cache_, check, explain, library, show, targets
from polyop.cli.run import run
from polyop.ir.errors import InternalError, PolyopError, UserError


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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="polyop")
@click.option("--debug", is_flag=True, help="Say more when something goes wrong.")
def commands(debug: bool) -> None:
    """Einstein notation to fast, proven kernels.

    FILE is a .pop file, "-", or the name of a file or an operator of the standard library, as in `polyop run softmax`.
    """
    logging.getLogger("polyop").setLevel(logging.DEBUG if debug else logging.WARNING)


for command in (run, check, show, explain, bench_, demo_, library, targets, cache_):
    commands.add_command(command)
