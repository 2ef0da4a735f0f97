"""The command line: the only room that prints, colours and exits."""

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


def main(arguments: list[str] | None = None) -> None:
    """The program `polyop`: exit status 0, 1 if something was wrong, 2 if the command line was."""
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=ERR, show_time=False, show_path=False)])
    try:
        status = commands(args=arguments, prog_name="polyop", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        ERR.print("stopped")
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UserError as error:
        report(error.diagnostic)
        sys.exit(1)
    except InternalError as error:
        ERR.print(Text(f"error: a bug of polyop, please report it: {error}", "bold red"))
        sys.exit(1)
    except (PolyopError, MemoryError, OSError) as error:
        ERR.print(Text(f"error: {str(error) or type(error).__name__}", "bold red"))
        sys.exit(1)
    except Exception as error:  # nobody gets a traceback unasked
        ERR.print(Text(f"error: a bug of polyop, please report it: {type(error).__name__}: {error}", "bold red"))
        if logging.getLogger("polyop").isEnabledFor(logging.DEBUG):
            ERR.print(Text(traceback.format_exc()))
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


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
