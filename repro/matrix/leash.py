"""Runs a command that must not outlive the matrix: `python leash.py COMMAND...`, with a pipe as standard input.

The pipe's other end is held by the matrix. When that process ends, however it ends, the pipe closes, and everything in
this process group is killed. Standard library only, and started without `site`, so that it costs nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run a command and return its exit code, or 128 and the number of the signal that ended it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_when_alone, daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _kill_when_alone() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    # Not sys.exit: the thread above may be in a read that never returns.
    os._exit(main(sys.argv[1:]))
