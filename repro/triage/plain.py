"""From text as it was copied to plain lines: without markup, colours, escapes and control characters."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

LINE = 4000
"""Characters kept of a line; what follows is dropped."""

FIRST, LAST = 5_000, 15_000
"""Lines kept from the beginning and from the end, should there be more than both together."""

AROUND = 200
"""Lines that a kept part may reach further, so that it does not end inside a traceback."""

_TAGS = (
    "a|abbr|article|aside|b|blockquote|body|br|button|code|dd|details|div|dl|dt|em|figure|font|footer|form|h[1-6]|head|header"
    "|hr|html|i|iframe|img|input|kbd|label|li|link|main|mark|meta|nav|noscript|ol|option|p|path|pre|samp|script|section"
    "|select|small|span|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|title|tr|tt|u|ul|var"
)
"""Only these are taken for markup: `<module>`, `<listcomp>` and `<ipython-input-3>` are words of a traceback."""

_TAG = re.compile(rf"<(?P<close>/?)(?P<name>{_TAGS})(?=[\s/>])[^<>]*>", re.IGNORECASE)
_BREAKING = re.compile(r"(?:article|blockquote|br|dd|div|dl|dt|h[1-6]|hr|li|ol|p|pre|section|table|td|th|tr|ul)$", re.I)
_IS_MARKUP = re.compile(r"<(?:html|body|pre|span|div|br|p|code|td|script|font|samp)(?=[\s/>])[^<>]*>", re.IGNORECASE)
_UNSEEN = ("script", "style")

_ESCAPE = re.compile(
    r"\x1b\[[0-?]{0,40}[ -/]{0,10}[@-~]"  # colours and cursor movement
    r"|\x1b\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[ -/]{0,4}[0-~]"
    r"|\[(?:[0-9]|[349][0-9])(?:;[0-9]{1,3}){0,5}m"  # a colour whose escape character was lost on the way
)
_WRITTEN_ESCAPE = re.compile(r"\\(?:u001b|x1b|033|e)(?=\[)", re.IGNORECASE)
_WRITTEN_CHARACTER = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([nrt\"'/\\]))")
_CLOSING = re.compile(r"\n[\"'}\], ]{1,20}$")
_WRITTEN = {"n": "\n", "r": "\n", "t": "\t", '"': '"', "'": "'", "/": "/", "\\": "\\"}

_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
    r"|[\U000e0000-\U000e007f]"
)


def lines(text: str) -> list[str]:
    """Return the text as a terminal would have shown it, line by line, each at most `LINE` characters long."""
    if '"nbformat"' in text:
        text = _notebook(text) or text
    if _IS_MARKUP.search(text):
        text = _without_markup(text)
    text = _unescaped(text)
    text = _ESCAPE.sub("", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\xa0", " ")
    return [inert(line).replace("\t", "    ").rstrip() for line in _cut(text)]


def inert(text: str) -> str:
    """Return the text without characters that steer a terminal or reorder what is read."""
    return _INVISIBLE.sub("", text)


def _cut(text: str) -> Iterator[str]:
    found = text.split("\n")
    if len(found) > FIRST + LAST:
        # Of a row of empty lines one says as much as all.
        found = [line for index, line in enumerate(found) if line.strip() or (index and found[index - 1].strip())]
    if len(found) > FIRST + LAST:
        first, last = FIRST, len(found) - LAST
        # A cut must not go through a traceback: the first part reaches to an error that lies just behind its edge.
        for edge in range(first, min(last, first + AROUND)):
            if "Error" in found[edge]:
                first = edge + 1
        found = [*found[:first], "", *found[max(first, last - AROUND) :]]
    for line in found:
        yield line[:LINE] if len(line) > LINE else line


def _without_markup(text: str) -> str:
    parts = []
    position = 0
    lowered = text.lower() if "<" in text else ""
    while tag := _TAG.search(text, position):
        parts.append(text[position : tag.start()])
        position = tag.end()
        name = tag["name"].lower()
        if name in _UNSEEN and not tag["close"]:
            # Neither shown nor run by anyone: what lies inside is no part of the text.
            closing = (
                lowered.find(f"</{name}", position) if len(lowered) == len(text) else text.find(f"</{name}", position)
            )
            position = closing if closing >= 0 else len(text)
        elif _BREAKING.match(name):
            parts.append("\n")
    parts.append(text[position:])
    return html.unescape("".join(parts))


def _unescaped(text: str) -> str:
    """Undo the escapes of a log in JSON or of a notebook's source: line ends and colours written as characters."""
    text = _WRITTEN_ESCAPE.sub("\x1b", text)
    kept = []
    for line in text.split("\n"):
        if "\\n" in line and ("most recent call" in line or 'File \\"' in line or "Error: " in line):
            line = _CLOSING.sub("", _WRITTEN_CHARACTER.sub(_character, line))
        kept.append(line)
    return "\n".join(kept)


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _WRITTEN[match[2]]


def _notebook(text: str) -> str:
    """Return the sources and outputs of a notebook file, or an empty text when it is none."""
    try:
        cells = json.loads(text)["cells"]
        parts = []
        for cell in cells:
            parts.append(_joined(cell.get("source")))
            for output in cell.get("outputs") or ():
                parts.append(_joined(output.get("text")))
                parts.append("\n".join(output.get("traceback") or ()))
        return "\n\n".join(part for part in parts if part)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def _joined(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value or "")
