"""From plain lines to exceptions with their frames, whichever program printed them and whatever was cut off.

Understood are CPython's own format of any version (translated by a page, too), IPython's old and new one, rich's and
pytest's, chains, groups, and messages without a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from repro.triage import plain, streams

MOST_FRAMES = 400
"""Frames kept of one exception: of a runaway recursion, the outermost half and the innermost half."""

MOST_EXCEPTIONS = 400
"""Different exceptions kept of one input; the last ones, should there be more."""

MOST_MESSAGE = 4000
"""Characters kept of a message."""


@dataclass(frozen=True)
class Frame:
    """One line of a traceback: where, in which function, and the source that was shown there."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def path(self) -> str:
        """The file with forward slashes, as on every system."""
        return self.file.replace("\\", "/")


@dataclass(frozen=True)
class Raised:
    """An exception as it was printed. `type` is empty where the end was cut off, `frames` where the top was.

    Frames are ordered from the outermost to the innermost. `times` says how often the very same was printed, `streams`
    by which processes, `follows` whether it was raised out of (`cause`) or while handling (`context`) the one before.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    follows: str = ""
    streams: tuple[str, ...] = ()
    times: int = 1

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]


@dataclass(frozen=True)
class Report:
    """All that was read: the exceptions in the order in which they were printed, and the plain lines."""

    raised: tuple[Raised, ...]
    lines: tuple[str, ...]


def parse(text: str) -> Report:
    """Find the exceptions in a text. Any text will do; where there is none, the report has none."""
    lines = plain.lines(text)
    by_stream = streams.split(lines)
    found: dict[tuple[object, ...], Raised] = {}
    for stream, its_lines in by_stream.items():
        for raised in _Reader().read(its_lines):
            key = (raised.type, raised.message, raised.frames)
            known = found.pop(key, None)
            names = (known.streams if known else ()) + ((stream,) if stream and len(by_stream) > 1 else ())
            times = known.times + 1 if known else 1
            found[key] = replace(raised, streams=tuple(dict.fromkeys(names)), times=times)
            if len(found) > MOST_EXCEPTIONS:
                found.pop(next(iter(found)))
    return Report(tuple(found.values()), tuple(line for its_lines in by_stream.values() for line in its_lines))


# Frames. Every expression is anchored or begins with a rare character, and every repetition is bounded.

_COMMA, _COLON = r"[,\uff0c\u3001]", r"[:\uff1a]"
"""With their counterparts in full width."""

_QUOTED = re.compile(
    rf"""["“”«]\s?(?P<file>[^"“”«»\n]{{1,600}}?)\s?["“”»]\s?{_COMMA}?  # "file",
        \s?[^\W\d]{{0,10}}\s?[.:]?\s?[^\d\s"]{{0,12}}\s?(?P<line>\d{{1,9}})  # line 12, in any language
        (?:\s?[^\s\w<,\uff0c\u3001]{{0,2}}[^\W\d_]{{0,2}}\s?{_COMMA}?\s{{0,2}}(?:[^\W\d_]{{1,6}}\s)?
        \s?(?P<function>[<\w][^\n]{{0,200}})?)?$
    """,
    re.VERBOSE,
)
_STANDARD = re.compile(
    r'\s*(?:File )?"(?P<file>[^"\n]{1,600})", line (?P<line>\d{1,9})(?:,? in (?P<function>[^\n]{1,200}))?'
)
_IPYTHON = re.compile(
    r"\s{0,8}(?:File )?(?P<file>(?:[~/.<]|[A-Za-z]:[\\/])[^\n\"()]{0,600}?):(?P<line>\d{1,9})"
    r",? in (?P<function>[\w.<>]{1,200})"
)
_IPYTHON_CELL = re.compile(
    r"(?P<file>(?:Cell |Input )?In ?\[\d{1,6}\])(?:, line (?P<line>\d{1,9})|, in )"
    r"(?:, in |(?=<))?(?P<function>[\w.<>: ]{0,60})"
)
_IPYTHON_OLD = re.compile(
    r"(?P<file>(?:[~/.<]|[A-Za-z]:[\\/])[^\n\"]{0,400}?) in (?P<function>[\w.]{1,100}|<[\w: ]{1,60}>)\("
)
_PYTEST = re.compile(
    r"(?P<file>[\w./\\~: -]{1,400}\.py):(?P<line>\d{1,9}): (?:in (?P<function>[\w.<>]{1,200})|(?P<type>[\w.]{1,100}))?$"
)
_ARROW = re.compile(r"\s{0,12}(?:-{1,12}> ?|❱ ?)(?P<line>\d{1,9})\s(?P<code>.*)")
_NUMBERED = re.compile(r"\s{0,12}\d{1,7}(?:\s|$)")
_CODE_AFTER_FILE = re.compile(r"\s*[\^~]{1,400}\s*$")

_HEADER = re.compile(
    r"(?:(?P<type>[A-Za-z_][\w.]{0,200})\s{2,})?.{0,80}(?:Traceback )?\(?most recent call (?P<end>last|first)\)?"
)
_CHAIN = (("direct cause of the following", "cause"), ("During handling of the above", "context"))
_REPEATED = re.compile(r"\s*\[Previous line repeated \d+ more times?\]")

# Exceptions.

_SUFFIXES = ("Error", "Exception", "Interrupt", "Exit", "ExceptionGroup", "StopIteration", "Timeout", "Failure")
_RAISED = re.compile(rf"(?P<type>[A-Za-z_][\w.]{{0,200}})(?: ?{_COLON} ?(?P<message>.*))?$")
_INLINE = re.compile(
    r"(?<![\w.])(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z]\w{0,60}(?:Error|Exception|Interrupt))"
    rf"\s{{0,3}}{_COLON}\s?(?P<message>\S.*)",
    re.ASCII,
)
_INLINE_WORDS = ("Error", "Exception", "Interrupt")
_SOURCE = re.compile(r"\s*(?:except|raise|#|//|\"\"\"|class|def|return|\d{1,7}\s)")


class _Reader:
    """Reads the lines of one process, and yields an exception as soon as the next thing begins."""

    def __init__(self) -> None:
        self._clear()

    def read(self, lines: Iterable[str]) -> Iterator[Raised]:
        for line in lines:
            yield from self._take(line)
        yield from self._close()

    def _clear(self, follows: str = "") -> None:
        self._frames: list[Frame] = []
        self._type = self._expected = ""
        self._message: list[str] = []
        self._open = self._reversed = self._adjacent = False
        self._follows = follows

    def _close(self, follows: str = "") -> Iterator[Raised]:
        if self._type or self._frames:
            frames = tuple(reversed(self._frames)) if self._reversed else tuple(self._frames)
            message = "\n".join(self._message).strip()[:MOST_MESSAGE]
            yield Raised(self._type or self._expected, message, frames, self._follows)
        self._clear(follows)

    def _take(self, line: str) -> Iterator[Raised]:
        if not line.strip():
            # An empty line ends a message. In a notebook it also stands between frames.
            self._open = self._adjacent = False
            return
        if "most recent call" in line and (header := _HEADER.match(line.strip())):
            yield from self._close(self._follows if not self._type and not self._frames else "")
            self._expected = header["type"] or ""
            self._reversed = header["end"] == "first"
            return
        for words, follows in _CHAIN:
            if words in line:
                yield from self._close(follows)
                return
        if frame := _frame(line):
            if self._type:
                yield from self._close()
            self._add(frame)
        elif self._open and self._type and not _begins(line):
            if len(self._message) < 40:
                self._message.append(line.strip())
        elif raised := self._raised(line):
            if self._type:
                yield from self._close()
            self._type, message = raised
            self._message, self._open = [message], True
        elif self._frames and not self._type:
            self._source(line)

    def _add(self, frame: Frame) -> None:
        self._adjacent = True
        if self._frames and self._frames[-1] == frame:
            return  # Two processes that print without a prefix, or a recursion.
        if self._frames and _same_place(self._frames[-1], frame):
            self._frames[-1] = replace(frame, code=frame.code or self._frames[-1].code)
            return
        self._frames.append(frame)
        if len(self._frames) > MOST_FRAMES:
            del self._frames[MOST_FRAMES // 2]

    def _source(self, line: str) -> None:
        last = self._frames[-1]
        if arrow := _ARROW.match(line):
            self._frames[-1] = replace(last, line=last.line or int(arrow["line"]), code=arrow["code"].strip())
        elif line[0] == " " and not last.code and not _NUMBERED.match(line) and not _CODE_AFTER_FILE.match(line):
            self._frames[-1] = replace(last, code=line.strip())
        elif line[0] != " " and not _REPEATED.match(line):
            self._adjacent = False

    def _raised(self, line: str) -> tuple[str, str] | None:
        if match := _RAISED.match(line):
            kind = match["type"]
            if _is_exception(kind) or kind == self._expected or (self._adjacent and _could_be_exception(kind)):
                return kind, match["message"] or ""
        if (
            any(word in line for word in _INLINE_WORDS)
            and not _SOURCE.match(line)
            and not (self._frames and line[0] == " ")
        ) and (match := _INLINE.search(line)):
            return match["type"], match["message"]
        return None


def _frame(line: str) -> Frame | None:
    stripped = line.strip()
    match = None
    if '"' in line and "line " in line:
        at = line.find('File "')
        match = _STANDARD.match(line, max(at, 0))
    if (
        match is None
        and (".py" in line or " in " in line or "In" in line)
        and line[:1] not in ("\t",)
        and _indent(line) <= 4
    ):
        match = (
            _IPYTHON.match(line)
            or _IPYTHON_CELL.match(stripped)
            or _IPYTHON_OLD.match(stripped)
            or _PYTEST.match(stripped)
        )
    if match is None and (".py" in line or "<" in line) and any(quote in line for quote in '"“”«'):
        match = _QUOTED.search(line)
        if match and not (match["file"].endswith(".py") or match["file"].startswith("<")):
            return None
    if match is None:
        return None
    groups = match.groupdict()
    return Frame(groups["file"].strip(), int(groups.get("line") or 0), _function(groups.get("function") or ""))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _function(text: str) -> str:
    text = text.strip().removesuffix("()")
    if not text.startswith("<"):
        text = text.partition("(")[0]
    return text.rpartition(".")[2].strip() if "<" not in text else text


def _same_place(known: Frame, new: Frame) -> bool:
    return (known.file, known.line, known.function) == (new.file, new.line, new.function)


def _is_exception(name: str) -> bool:
    return name.endswith(_SUFFIXES) and name[-9:] != ".Exception" and not name.startswith("E.")


def _could_be_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return (
        bool(last) and last[0].isupper() and not last.isupper() and ("." in name or any(c.isupper() for c in last[1:]))
    )


def _begins(line: str) -> bool:
    """Tell whether a line begins something new, although no empty line stands before it."""
    match = _RAISED.match(line)
    return bool(match and _is_exception(match["type"]) and (match["message"] or "." in match["type"]))
