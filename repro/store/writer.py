"""Appending records: one file per writing process, so that processes never wait for or overwrite each other."""

from __future__ import annotations

import datetime
import errno
import os
import uuid
from pathlib import Path

from repro.store.records import Record, dump


class ResultsError(Exception):
    """Results could not be read or written; the message says where, why, and what to do."""


class Writer:
    """Appends records to a file of its own in a results directory. The file is made with the first record.

    A record is handed to the operating system in one write before `append` returns: killing this process afterwards
    loses nothing, and killing it during the write leaves at most one torn last line, which readers skip.
    """

    def __init__(self, directory: Path, name: str = "") -> None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
        self.path = directory / f"{stamp}-{name + '-' if name else ''}{os.getpid()}-{uuid.uuid4().hex[:6]}.jsonl"
        self._file: int | None = None
        self._torn = b""

    def append(self, record: Record) -> None:
        """Append one record. Raises ResultsError when the directory cannot be written or is full."""
        line = (dump(record) + "\n").encode()
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY, 0o644)
            written = os.write(self._file, self._torn + line)
            if written != len(self._torn + line):
                # A short write means a full disk. Should space come back, a line end keeps what follows readable.
                self._torn = b"\n"
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = b""
        except OSError as error:
            raise ResultsError(
                f"cannot write results to {self.path.parent}: {error.strerror}. What was stored before is safe; "
                "choose another directory with --results, or make room there."
            ) from error

    def close(self) -> None:
        """Close the file. Appending afterwards is an error of the caller."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
