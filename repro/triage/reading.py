"""From a file or a pipe to bounded text: whatever its size and encoding.

Small input is kept whole. Of a large one, only windows round the words that tracebacks have are kept: the first and the
last of them, so that memory does not grow with the input.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

WHOLE = 1 << 20
"""Bytes up to which input is kept whole."""

BEFORE, AFTER = 8 << 10, 16 << 10
"""Bytes kept before and after a word that tracebacks have: some twenty frames with their source lines."""

FIRST, LAST = 256 << 10, 768 << 10
"""Bytes of windows kept from the beginning and from the end of a large input."""

_CHUNK = 256 << 10

_MARKS = (
    b"most recent call",
    b"Error: ",
    b"Exception: ",
    b"out of memory",
    b"Tried to allocate",
    b"through the graph a second time",
    b"---> ",
    b"SIGKILL",
    b"\nKilled",
)
"""Words that tracebacks and deaths for want of memory have, also inside markup and after any log prefix."""

_VERSION_MARKS = (b"transformers==", b"transformers version", b"`transformers` version", b"torch==", b"PyTorch version")

_GAP = b"\n\n"
"""Set between windows: an empty line ends a message, so that windows do not run into each other."""


class UnreadableError(Exception):
    """The input holds no text; the message says why and what to do."""


def read(stream: BinaryIO) -> str:
    """Read a whole stream into bounded text.

    Raises UnreadableError for an empty or a binary input.
    """
    head = _read_up_to(stream, WHOLE + 1)
    if not head.strip(b"\x00 \t\r\n\xef\xbb\xbf\xff\xfe"):
        raise UnreadableError("the input is empty. Paste the whole text that was printed, the last line above all.")
    encoding = _encoding(head)
    if encoding == "utf-8" and _is_binary(head):
        raise UnreadableError(
            "the input is binary, not text. Save the error's text itself, not a picture or an archive."
        )
    if len(head) <= WHOLE:
        return head.decode(encoding, errors="replace")
    if encoding != "utf-8":
        return _windows(_recoded(head, stream, encoding)).decode("utf-8", errors="replace")
    return _windows(_chunks(head, stream)).decode("utf-8", errors="replace")


def decode(content: bytes) -> str:
    """Decode a file that a person or a shell wrote: UTF-8, or the UTF-16 that PowerShell redirects into."""
    return content.decode(_encoding(content), errors="replace")


def _read_up_to(stream: BinaryIO, size: int) -> bytes:
    parts = []
    while size > 0 and (part := stream.read(min(size, _CHUNK))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _chunks(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    for start in range(0, len(head), _CHUNK):
        yield head[start : start + _CHUNK]
    while chunk := stream.read(_CHUNK):
        yield chunk


def _recoded(head: bytes, stream: BinaryIO, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for chunk in _chunks(head, stream):
        yield decoder.decode(chunk).encode("utf-8", errors="replace")


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    sample = head[:4096]
    if len(sample) >= 8:
        # Text in UTF-16 without its mark is mostly ASCII here, so that every second byte is null.
        if sample[1::2].count(0) > 0.8 * len(sample[1::2]) and sample[::2].count(0) < 0.1 * len(sample):
            return "utf-16-le"
        if sample[::2].count(0) > 0.8 * len(sample[::2]) and sample[1::2].count(0) < 0.1 * len(sample):
            return "utf-16-be"
    return "utf-8"


def _is_binary(head: bytes) -> bool:
    sample = head[: 64 << 10]
    controls = sum(sample.count(byte) for byte in range(32) if byte not in b"\b\t\n\r\f\x1b")
    return controls > 0.05 * len(sample)


def _windows(chunks: Iterator[bytes]) -> bytes:
    """Return the first and the last windows of a stream, with gaps where something was left out."""
    first: list[bytes] = []
    last: deque[bytes] = deque()
    kept_first = kept_last = end = 0
    for start, window in _marked(chunks):
        piece = window if start == end else _GAP + window
        end = start + len(window)
        if kept_first < FIRST:
            first.append(piece)
            kept_first += len(piece)
            continue
        last.append(piece)
        kept_last += len(piece)
        while kept_last - len(last[0]) > LAST:
            kept_last -= len(last.popleft())
    return b"".join([*first, _GAP, *last]) if kept_last > LAST else b"".join([*first, *last])


def _marked(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a stream round its marks and its very end: offset and bytes, in order, never overlapping.

    What is past is kept in the buffer as long as a window may still begin there, or a mark lie on the seam.
    """
    buffer, offset, open_until = b"", 0, 0
    for chunk in chunks:
        buffer += chunk
        settled = max(0, len(buffer) - BEFORE - AFTER)
        spans = _joined([(0, open_until - offset), *_spans(buffer)])
        for start, stop in spans:
            if start < min(stop, settled):
                yield offset + start, buffer[start : min(stop, settled)]
        # A window that reaches beyond what is settled goes on in the next buffer.
        open_until = max([open_until, *(offset + stop for start, stop in spans if start < settled)])
        buffer, offset = buffer[settled:], offset + settled
    end = (max(0, len(buffer) - AFTER), len(buffer))
    for start, stop in _joined([(0, open_until - offset), *_spans(buffer), end]):
        if start < min(stop, len(buffer)):
            yield offset + start, buffer[start : min(stop, len(buffer))]


def _spans(buffer: bytes) -> list[tuple[int, int]]:
    spans = []
    for mark in _MARKS:
        at = buffer.find(mark)
        while at >= 0:
            spans.append((max(0, at - BEFORE), at + AFTER))
            # What lies in the window already need not be found again, which bounds the number of searches.
            at = buffer.find(mark, at + AFTER // 2)
    for mark in _VERSION_MARKS:
        at = buffer.find(mark)
        if at >= 0:
            spans.append((max(0, at - 200), at + 200))
    return spans


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined
