"""Log prefixes: taken off, and used to tell the processes apart whose lines are interleaved."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_STREAMS = 64
"""Processes told apart; the lines of any further one are taken together."""

_PREFIX = re.compile(
    r"""
      \[(?:rank|default|local_rank|host)[ =:]?(?P<rank>\d{1,5})\]:?[ ]?            # torch >= 2.3, torchrun
    | \[\d{1,5},\d{1,5}\]<std(?:err|out)>:[ ]?                                     # MPI, horovod
    | \((?:[\w.]{1,80},?[ ])?pid=\d{1,10}(?:,[ ]ip=[\d.:a-f]{1,45})?\)[ ]?         # ray
    | (?P<task>\d{1,5}):[ ](?=[ ]{2}File|Traceback|\S{1,200}(?:Error|Exception)\b|[ ]{4})  # srun --label
    | [A-Za-z][\w.-]{0,60}[ ]*\|[ ]                                                # docker compose
    """,
    re.VERBOSE,
)
"""Prefixes that name the process a line comes from."""

_DECORATION = re.compile(
    r"""
      \[?\d{4}[-/]\d\d[-/]\d\d[T ,]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[ ]?[+-]\d\d:?\d\d)?\]?[ ]?[-:|]?[ ]?   # a date
    | \[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?[ ][-:|]?[ ]?
    | [IWEF]\d{4}[ ][\d:.]{8,20}[ ]{1,8}\d{1,20}[ ][\w./-]{1,200}:\d{1,7}\][ ](?:\[[\d/]{1,20}\][ ])?         # glog
    | \[?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?[ ]{0,4}[:|-]?(?:[ ]|:[\w.]{1,80}:)
    | \[(?:stderr|stdout|err|out)\]:?[ ]?
    | (?:>[ ]?){1,6}                                                               # a quoted mail or post
    | E[ ]{3}                                                                      # pytest
    | [\w.-]{1,80}[ ]-[ ](?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ ]-[ ]
    """,
    re.VERBOSE,
)
"""Prefixes that say when and how, but not who."""

_RAIL = re.compile(r"[ ]{0,80}[|│┃][ ]?|[ ]{0,80}\+(?:-\+)?-{2,}[ \d.-]*")
"""What stands at the left of an exception group, and of a boxed traceback."""

_RIGHT_RAIL = re.compile(r"[ ]*[│┃]$")


def split(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines by the process they come from, in order and without prefixes; `""` where none is named."""
    streams: dict[str, list[str]] = {}
    for line in lines:
        stream, rest = _strip(line)
        if stream not in streams and len(streams) >= MOST_STREAMS:
            stream = ""
        streams.setdefault(stream, []).append(rest)
    return streams


def _strip(line: str) -> tuple[str, str]:
    stream = ""
    for _ in range(5):
        if not line or line[0] in " \t":
            break
        if match := _PREFIX.match(line):
            stream = stream or _name(match)
        else:
            match = _DECORATION.match(line)
        if match is None or not match.end():
            break
        line = line[match.end() :]
    return stream, _without_rail(line)


def _without_rail(line: str) -> str:
    if "|" not in line and "│" not in line and "┃" not in line and "+-" not in line:
        return line
    for _ in range(8):
        match = _RAIL.match(line)
        if match is None or not match.end():
            break
        line = line[match.end() :]
    return _RIGHT_RAIL.sub("", line) if line.endswith(("│", "┃")) else line


def _name(match: re.Match[str]) -> str:
    rank = match["rank"] or match["task"]
    return f"rank {rank}" if rank else match[0].strip(" |:")
