"""`repro` and `python -m repro`."""

from __future__ import annotations

import os
import sys

from repro.catalog import UnknownFailureError
from repro.commands import COULD_NOT_RUN, WRONG_USAGE, Stop, build_app
from repro.store.writer import ResultsError


def main() -> None:
    """Run the command line. Errors that a user can act upon are one message, without a traceback."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lasts as long as the process
    try:
        build_app(only=sys.argv[1] if len(sys.argv) > 1 else None)(prog_name="repro")
    except Stop as stop:
        _end(str(stop), stop.code)
    except UnknownFailureError as error:
        _end(str(error), WRONG_USAGE)
    except ResultsError as error:
        _end(str(error), COULD_NOT_RUN)
    except BrokenPipeError:
        # The reader of our output went away; that is its right.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # What is left in the buffer would fail once more at the end, with a message of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _end(f"{error.filename or 'the output'}: {error.strerror or error}", COULD_NOT_RUN)


def _end(message: str, code: int) -> None:
    print(f"repro: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
