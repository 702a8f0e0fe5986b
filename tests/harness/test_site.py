"""The static site: what is in its files, and what a real browser makes of them."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from repro.__main__ import main
from repro.catalog import failures
from repro.show.pages import reference
from repro.show.site.build import SiteError, build, failure_page, prose
from repro.store.reader import read
from repro.store.reference import REFERENCE
from repro.vocabulary import Failure, Source

WHISPER = "whisper-double-backward"
HOSTILE = '</script><script>alert("x")</script> & "quoted" \u2028 `<b>code</b>`'
LIMIT = 2 << 20


def catalogue() -> list[Failure]:
    """Return the real failure, one that exists nowhere, and one that says hostile things."""
    entry = failures()[WHISPER]
    unseen = replace(entry, id="never-observed", title="Never observed", claims=entry.claims[:2])
    sources = (Source("trap", HOSTILE, "javascript:alert(1)"),)
    claim = replace(entry.claims[0], says=HOSTILE, code=HOSTILE)
    hostile = replace(entry, id="hostile", title=HOSTILE, summary=HOSTILE, claims=(claim,), sources=sources)
    return [entry, unseen, hostile]


def records() -> list[Any]:
    """Return the reference, and for the hostile failure outcomes that are good everywhere."""
    stored = [
        {**r, "peak_bytes": 10 << 20, "capacity": 8 << 20} if r["kind"] == "observation" else r
        for r in read(REFERENCE).records
    ]
    good: dict[str, Any] = {"end": "completed", "exception": None, "gradients": {}, "loss_finite": True, "moved": True}
    copies = [
        {**record, **(good if record["kind"] == "observation" else {}), "failure": "hostile"}
        for record in stored
        if record.get("failure") == WHISPER
    ]
    copies = [
        {**r, "id": f"h-{r['id']}", **({"trial": r["trial"].replace(WHISPER, "hostile")} if "trial" in r else {})}
        for r in copies
    ]
    return [*stored, *copies]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "with space and #hash"
    build(reference(catalogue(), records()), out)
    return out


class Links(HTMLParser):
    """Collects what a page refers to, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.hrefs.append(str(found["href"]))
        if tag in ("script", "img", "link", "iframe") and (found.get("src") or found.get("href")):
            self.loads.append(str(found.get("src") or found.get("href")))
        self.scripts += tag == "script"


def test_every_link_leads_to_a_page_and_place_that_exist(site: Path) -> None:
    pages = {path.name: Links(path.read_text("utf-8")) for path in site.glob("*.html")}
    rows = json.loads((site / "search.js").read_text("utf-8").removeprefix("window.SEARCH = ").rstrip(";\n"))
    links = [(name, href) for name, page in pages.items() for href in page.hrefs]
    links += [("index.html", page) for *_, page in rows]
    assert len(links) > 100
    for name, href in links:
        if href.startswith("http"):
            continue
        target, _, place = href.partition("#")
        assert (target or name) in pages, f"{name} links to {href}"
        assert not place or place in pages[target or name].ids, f"{name} links to {href}"
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), f"{name} has an id twice"


def test_pages_load_nothing_but_what_lies_beside_them(site: Path) -> None:
    for path in site.glob("*.html"):
        loads = Links(path.read_text("utf-8")).loads
        assert set(loads) == {"data:,", "style.css", "search.js", "site.js"}
    style = (site / "style.css").read_text("utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_text_stays_text(site: Path) -> None:
    for path in site.glob("*.html"):
        text = path.read_text("utf-8")
        assert Links(text).scripts == 2, path.name
        assert "<script>alert" not in text
        assert 'href="javascript:' not in text
    assert "<" not in (site / "search.js").read_text("utf-8")
    assert str(prose(HOSTILE)).count("<") == 2, "only the code element itself"


def test_the_same_results_make_the_same_site(site: Path, tmp_path: Path) -> None:
    build(reference(catalogue(), reversed_of(records())), tmp_path / "again")
    for path in site.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def reversed_of(found: list[Any]) -> list[Any]:
    """Return records as another order of files would yield them: the reader sorts by time."""
    from repro.store.reader import merge

    return list(merge(reversed(found)))


def test_the_page_of_a_release_puts_what_works_first(site: Path) -> None:
    page = (site / "transformers-4.53.3.html").read_text("utf-8")
    # A release may have been observed in several cells, each with lists of its own.
    lists = [re.findall(r'<li><span class="mark (\w+)">', part) for part in page.split("<ul")]
    for told in lists:
        assert told == sorted(told, key=["good", "mixed", "bad", "dull"].index)
    assert {"good", "bad"} <= {tone for told in lists for tone in told}


def test_an_earlier_site_is_replaced_and_anything_else_is_refused(tmp_path: Path) -> None:
    facts = reference(catalogue(), records())
    build(facts, tmp_path / "site")
    build(replace(facts, failures=facts.failures[:1]), tmp_path / "site")
    assert not (tmp_path / "site" / failure_page("hostile")).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine", "utf-8")
    with pytest.raises(SiteError, match="not a site made here"):
        build(facts, tmp_path / "mine")
    assert (tmp_path / "mine" / "index.html").read_text("utf-8") == "mine"


def test_pages_of_fifty_releases_and_all_failures_stay_under_two_megabytes(tmp_path: Path, benchmark: Any) -> None:
    catalogue = failures().values()
    [cell] = {
        r["cell"] for r in read(REFERENCE).records if r["cell"].startswith("transformers-4.53.3-torch-2.13.0+cpu")
    }
    one = [r for r in read(REFERENCE).records if r["cell"] == cell]
    assert {r["failure"] for r in one if r["kind"] == "observation"} == {failure.id for failure in catalogue}
    copies: list[Any] = [
        {
            **record,
            "cell": f"cell-{release}",
            "id": f"{record['id']}-{release}",
            **({"transformers": f"4.{release}.0"} if "transformers" in record else {}),
        }
        for release in range(50)
        for record in one
    ]
    pages = benchmark.pedantic(lambda: build(reference(catalogue, copies), tmp_path / "site"))
    assert len(pages) == 1 + len(catalogue) + 50
    assert max(path.stat().st_size for path in (tmp_path / "site").iterdir()) < LIMIT


def test_the_command_writes_a_site_from_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["repro", "report", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    assert run("--results", str(REFERENCE), "--out", str(tmp_path / "site")) == 0
    assert Path(capsys.readouterr().out.strip()) == tmp_path / "site" / "index.html"
    assert run("--results", str(tmp_path / "none"), "--out", str(tmp_path / "other")) == 3
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x", "utf-8")
    assert run("--results", str(REFERENCE), "--out", str(tmp_path / "full")) == 3


# From here on in a real browser.

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def missing(why: str) -> None:
    """Skip, and say why; on CI, where the browser is installed on purpose, its absence is an error."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}, and CI has to have it")
    pytest.skip(why)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not chromium:
        missing("no Chromium is installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()


class Visit:
    """A page in a browser that notes every complaint and every request."""

    def __init__(self, browser: Any, **context: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()

    def visible(self, selector: str) -> list[str]:
        return [item.inner_text() for item in self.page.locator(selector).all() if item.is_visible()]


@pytest.fixture(scope="module", params=["disk", "server"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Return where the site is: its directory opened from disk, and served."""
    if request.param == "disk":
        yield site.as_uri()
        return

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


IN_VIEW = "e => { const at = e.getBoundingClientRect().top; return at > -1 && at < innerHeight; }"


@pytest.mark.slow
def test_in_a_browser_search_filters_and_deep_links_work_and_nothing_is_asked_of_others(
    browser: Any, address: str
) -> None:
    with Visit(browser) as visit:
        page = visit.page
        page.goto(f"{address}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("freeze encoder")
        [first, *_] = visit.visible("#found a")
        assert "freeze-encoder" in first
        page.get_by_role("link", name="freeze-encoder: freeze the encoder").first.click()
        page.wait_for_url("**#claim-freeze-encoder")
        assert page.evaluate("document.activeElement.id") == "claim-freeze-encoder"
        assert page.locator("#claim-freeze-encoder").evaluate(IN_VIEW)

        page.goto(f"{address}/index.html#q=nothing-has-this-name")
        assert visit.visible("#found .count") == ["Nothing for “nothing-has-this-name”."]
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        assert not visit.visible("#found")

        page.goto(f"{address}/index.html#release=4.53.3&status=affected")
        page.reload()
        assert visit.visible("tbody tr th") == [WHISPER]
        assert len(visit.visible(".cards article")) == 1
        page.get_by_label("Show").select_option("not affected")
        assert visit.visible("tbody tr th") == ["hostile"]
        assert "not+affected" in page.url

        page.goto(f"{address}/{failure_page(WHISPER)}#release=4.53.3&verdict=resolves")
        shown = visit.visible(".claim h3 .anchor")
        assert "use-reentrant-false" in shown
        assert "W1" not in shown
        page.get_by_label("Verdict").select_option("no effect")
        shown = visit.visible(".claim h3 .anchor")
        assert "W1" in shown
        assert "use-reentrant-false" not in shown
        page.locator("#cures a[href='#claim-use-reentrant-false']").click()
        assert visit.visible("#claim-use-reentrant-false h3")
        assert visit.visible("#claim-W1 h3")
        assert page.evaluate("document.activeElement.id") == "claim-use-reentrant-false"
        assert page.locator("#claim-use-reentrant-false").evaluate(IN_VIEW)

        for path in ("index.html", failure_page("hostile"), "transformers-4.53.3.html"):
            page.goto(f"{address}/{path}")
        assert visit.complaints == []
        assert visit.requests
        assert all(url.startswith((address, "data:")) for url in visit.requests)


COVERED = """[...document.querySelectorAll(".copyable")].filter(each => {
  const button = each.querySelector(".copy"), code = each.querySelector("pre");
  return button.offsetHeight && button.getBoundingClientRect().top < code.getBoundingClientRect().bottom;
}).length"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

# WCAG 2.1: relative luminance and contrast of every piece of text against the first opaque background behind it.
CONTRAST = """() => {
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.map((v) => linear(v / 255));
                         return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor);
                          if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest(".unseen, option")) continue;
    const [one, other] = [light(parts(getComputedStyle(e).color).slice(0, 3)), light(behind(e))].sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_pages_fit_a_phone_and_every_text_has_contrast(browser: Any, site: Path, scheme: str) -> None:
    phone = {"width": 360, "height": 740}
    with Visit(browser, viewport=phone, color_scheme=scheme) as visit:
        backgrounds = set()
        for path in sorted(site.glob("*.html")):
            visit.page.goto(path.as_uri() + "#q=reentrant")
            assert visit.page.evaluate(OVERFLOW) <= 0, f"{path.name} is wider than a phone"
            assert visit.page.evaluate(COVERED) == 0, f"{path.name} has a button on top of code"
            ratios = visit.page.evaluate(CONTRAST)
            assert len(ratios) > 10
            worst, where = min(ratios)
            assert worst >= 4.5, f"{path.name}, {scheme}: {worst:.2f} at {where}"
            backgrounds.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(backgrounds) == 1
        visit.page.get_by_role("button", name="Switch between light and dark").click()
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") not in backgrounds
        visit.page.reload()
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") not in backgrounds


@pytest.mark.slow
def test_in_a_browser_everything_is_reached_by_keyboard_printed_and_there_without_scripts(
    browser: Any, site: Path
) -> None:
    address = f"{site.as_uri()}/{failure_page(WHISPER)}"
    with Visit(browser) as visit:
        visit.page.goto(address)
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(400):
            visit.page.keyboard.press("Tab")
            outline, index, left = visit.page.evaluate(
                "() => { const e = document.activeElement; return [getComputedStyle(e).outlineStyle,"
                " [...document.querySelectorAll('a, button, input, select, [tabindex=\"0\"]')].indexOf(e),"
                " e === document.body]; }"
            )
            if left or index in reached:
                break
            if index < 0:
                continue  # a table that is wider than its place: the browser lets the keyboard scroll it
            assert outline != "none", "the keyboard's place is not seen"
            reached.add(index)
        everything = visit.page.evaluate(
            "document.querySelectorAll('a, button, input, select, [tabindex=\"0\"]').length"
        )
        assert len(reached) >= everything - 2
        visit.page.emulate_media(media="print")
        assert not visit.visible("header form, .theme, .filters, .copy")
        assert visit.visible("#claim-W1 h3")
    with Visit(browser, java_script_enabled=False) as visit:
        visit.page.goto(address)
        assert not visit.visible("form, button")
        assert visit.visible("#claim-W1 h3")
        assert re.search("Seen in transformers", "".join(visit.visible("main > p")))
