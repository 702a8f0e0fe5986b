"""Builds the site: an index, a page per failure, a page per release, and what they share, all in one directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from repro.show.facts import (
    ABSENT,
    AFFECTED,
    DEPENDS,
    FAILS,
    FALSE,
    GOOD,
    HELPS,
    SILENT,
    TOLD_FROM,
    TRUE,
    UNKNOWN,
    WORKS,
    ClaimFacts,
    FailureFacts,
    Judged,
    Place,
    Reference,
    ReleaseFacts,
)

ASSETS = ("style.css", "site.js")
INDEX = "index.html"
MADE_HERE = ".made-by-repro-report"
"""Marks a directory as one that may be written over."""

TONES = {
    AFFECTED: "bad", GOOD: "good", ABSENT: "idle", UNKNOWN: "dull", "": "none",
    WORKS: "good", TRUE: "good", FAILS: "bad", FALSE: "bad", HELPS: "mixed", DEPENDS: "mixed",
    "resolves": "good", "confirmed": "good", "no effect": "bad", "refuted": "bad", "unavailable": "bad",
    "partly": "mixed", "moves it": "mixed", "not needed": "idle", "not observable": "idle",
}  # fmt: skip
"""Which colour a value has. A colour never stands alone: a sign and the word itself are always beside it."""

SIGNS = {"good": "✓", "mixed": "±", "bad": "✗", "dull": "?", "idle": "-", "none": "·"}

RANK = {tone: number for number, tone in enumerate(SIGNS)}
"""What a list shows first: what works."""


class SiteError(Exception):
    """The site cannot be written; the message says where and why."""


@dataclass(frozen=True)
class Advice:
    """What one failure's claims are worth in one cell, for a release's page."""

    failure: FailureFacts
    place: Place
    status: str
    outcome: str
    judged: tuple[tuple[ClaimFacts, Judged], ...]


def build(reference: Reference, out: Path) -> list[Path]:
    """Write the whole site, replacing one that was made before. Returns its pages.

    Raises SiteError when `out` is something else, or cannot be written.
    """
    pages = dict(_pages(reference))
    try:
        _clear(out)
        (out / MADE_HERE).write_text("", encoding="utf-8")
        for name in ASSETS:
            (out / name).write_text((files(__package__) / "assets" / name).read_text("utf-8"), encoding="utf-8")
        (out / "search.js").write_text(f"window.SEARCH = {_search(reference)};\n", encoding="utf-8")
        for name, text in pages.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SiteError(
            f"cannot write the site to {out}: {error.strerror}. Choose another directory with --out."
        ) from error
    return [out / name for name in pages]


def _clear(out: Path) -> None:
    """Make room: an earlier site goes, anything else is left alone and refused."""
    if not out.exists():
        out.mkdir(parents=True)
    if not out.is_dir() or (any(out.iterdir()) and not (out / MADE_HERE).exists()):
        raise SiteError(f"{out} holds something that is not a site made here. Choose another directory with --out.")
    for path in out.iterdir():
        if path.suffix in (".html", ".js", ".css"):
            path.unlink()


def _pages(reference: Reference) -> Iterator[tuple[str, str]]:
    environment = _environment()

    def page(template: str, **values: Any) -> str:
        return environment.get_template(template).render(site=reference, **values)

    yield INDEX, page("index.html.j2", here=INDEX)
    for failure in reference.failures:
        yield failure_page(failure.id), page("failure.html.j2", failure=failure, here=failure_page(failure.id))
    for release in reference.releases:
        name = release_page(release.release)
        yield name, page("release.html.j2", release=release, advice=_advice(reference, release), here=name)


def failure_page(failure: str) -> str:
    """Return the file of a failure's page."""
    return f"failure-{failure}.html"


def release_page(release: str) -> str:
    """Return the file of a release's page."""
    return f"transformers-{re.sub('[^A-Za-z0-9.]', '_', release)}.html"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(prose=prose, sentence=_sentence, json=_json, size=_size)
    environment.globals.update(
        tone=lambda value: TONES.get(value, "dull"),
        sign=lambda value: SIGNS[TONES.get(value, "dull")],
        failure_page=failure_page,
        release_page=release_page,
        silent=SILENT,
        link=_link,
        told_from=TOLD_FROM,
    )
    return environment


def prose(text: str) -> Markup:
    """Return text as HTML: escaped, and code where it stood between backticks."""
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _link(url: str) -> str:
    """Return an address that is safe as a link, empty for anything but the web."""
    return url if url.startswith(("https://", "http://")) else ""


def _size(count: int) -> str:
    """Return bytes for a person."""
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _json(value: Any) -> str:
    """Return JSON that may stand in a script or an attribute: no character in it can end either."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _advice(reference: Reference, release: ReleaseFacts) -> list[Advice]:
    found = []
    for place in release.places:
        for failure in reference.failures:
            status = next((status for status in failure.statuses if status.place.id == place.id), None)
            if status is None:
                continue
            told = [(c, j) for c in failure.claims for j in c.judged if j.place.id == place.id]
            judged = tuple(sorted(told, key=lambda pair: RANK[TONES.get(pair[1].verdict, "dull")]))
            found.append(Advice(failure, place, status.status, status.outcome, judged))
    return found


def _search(reference: Reference) -> str:
    """Return what search looks through: a row per failure, symptom, claim and release, `[kind, title, text, page]`."""
    rows = []
    for failure in reference.failures:
        page = failure_page(failure.id)
        about = f"{failure.id} {failure.summary} {failure.trigger.says} {' '.join(failure.reported)}"
        rows.append(("failure", failure.title, about, page))
        rows += [("symptom", s.outcome, f"{s.error} {s.says}", f"{page}#looks") for s in failure.symptoms]
        rows += [
            (
                "claim",
                f"{c.id}: {c.says}".replace("`", ""),
                f"{c.standing} {c.change} {c.code} {failure.id}",
                f"{page}#{c.anchor}",
            )
            for c in failure.claims
        ]
    for release in reference.releases:
        has = [f.id for f in reference.failures if f.status_in(release.release) == AFFECTED]
        text = f"affected: {', '.join(has) or 'by none of these'}"
        rows.append(("release", f"transformers {release.release}", text, release_page(release.release)))
    return _json(rows)
