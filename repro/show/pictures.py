"""Pictures of memory: over time, and peaks side by side. As SVG and PNG with matplotlib, as text without anything.

The text is always available; files need the extra `pictures`. The same report gives the same bytes of SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.memory.report import Report

FORMATS = ("svg", "png")
_SHADES = " ▁▂▃▄▅▆▇█"
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_LONGEST = 44
_MARGIN = 18


class PicturesUnavailableError(RuntimeError):
    """Picture files cannot be drawn here; the message says what to install."""


@dataclass(frozen=True)
class Bar:
    """One bar: what it stands for, its bytes, and what to say about it (a verdict, an out-of-memory error)."""

    label: str
    bytes: int
    says: str = ""


def human(nbytes: float) -> str:
    """Return a size for reading: three digits and a binary unit."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return (
                f"{size:.0f} {unit}"
                if unit == "B"
                else f"{size:.3g} {unit}"
                if abs(size) < 1000
                else f"{size:.0f} {unit}"
            )
        size /= 1024
    raise AssertionError


def timeline_text(report: Report, *, width: int = 72, height: int = 10) -> str:
    """Draw memory over time with characters: a column is a stretch of events, its height the most that was live in it.

    A line marks the capacity if it is near enough to be seen. Each phase has a row; the holders at the peak follow.
    """
    columns = _columns(report, width)
    top = max([report.peak_bytes, *columns, 1])
    if report.capacity is not None and report.capacity <= 2 * top:
        top = max(top, report.capacity)
    mark = None if report.capacity is None else (height * report.capacity - 1) // top
    lines = []
    for row in range(height - 1, -1, -1):
        fill = "-" if mark == row else " "
        cells = (_cell(value * height / top - row, fill) for value in columns)
        label = "capacity" if mark == row else human(top) if row == height - 1 else ""
        lines.append(f"{label:>{_MARGIN}} |{''.join(cells)}")
    lines.append(f"{'0 B':>{_MARGIN}} +{'-' * len(columns)}")
    lines += [f"{_cut(name, _MARGIN):>{_MARGIN}} |{row}" for name, row in _phase_rows(report, len(columns))]
    lines.append(f"peak {report.peak_bytes:,} bytes ({report.source}, {report.events:,} allocations and releases)")
    if report.capacity is not None:
        lines.append(f"capacity {report.capacity:,} bytes; allocations refused: {len(report.refusals)}")
    lines += [f"  {each.bytes:>14,}  in {each.blocks:>4}  {each.made_at}" for each in report.holders]
    return "\n".join(lines)


def bars_text(bars: Sequence[Bar], *, capacity: int | None = None, width: int = 48) -> str:
    """Draw peaks as horizontal bars with characters, in the order given; `!` marks those over the capacity."""
    if not bars:
        return "no peaks to draw"
    longest = min(_LONGEST, max(len(bar.label) for bar in bars))
    top = max([*(bar.bytes for bar in bars), 1])
    lines = []
    for bar in bars:
        drawn = "█" * max(1, round(width * bar.bytes / top))
        over = "!" if capacity is not None and bar.bytes > capacity else " "
        line = f"{_cut(bar.label, longest):<{longest}} {drawn:<{width}}{over}{bar.bytes:>16,}  {bar.says}"
        lines.append(line.rstrip())
    if capacity is not None:
        lines.append(f"{'capacity':<{longest}} {capacity:,} bytes")
    return "\n".join(lines)


def draw_timeline(report: Report, to: Path, *, title: str = "") -> list[Path]:
    """Draw memory over time with phases, peak and capacity to `to` with each suffix of `FORMATS`; return the paths.

    Raises PicturesUnavailableError without matplotlib, OSError when a file cannot be written.
    """
    figure, axes = _figure(9.0, 4.2)
    unit, scale = _scale(max(report.peak_bytes, report.capacity or 0))
    at = [point.event for point in report.timeline]
    axes.fill_between(at, [point.bytes / scale for point in report.timeline], step="post", color="#bbbbbb", linewidth=0)
    for index, (name, spans) in enumerate(_by_name(report)):
        colour = _COLOURS[index % len(_COLOURS)]
        for number, (start, end) in enumerate(spans):
            where = [start <= event < max(end, start + 1) for event in at]
            heights = [point.bytes / scale for point in report.timeline]
            axes.fill_between(at, heights, where=where, step="post", color=colour, linewidth=0)
            axes.axvspan(start, end, ymax=0.02, color=colour, linewidth=0, label="_" if number else name)
    axes.axhline(report.peak_bytes / scale, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(f"peak {report.peak_bytes:,} bytes", (0, report.peak_bytes / scale), va="bottom", fontsize=8)
    if report.capacity is not None:
        axes.axhline(
            report.capacity / scale, color="#cc3311", linewidth=1.2, label=f"capacity {report.capacity:,} bytes"
        )
    axes.set(xlabel="allocations and releases", ylabel=f"live on the device ({unit})", title=title, ylim=(0, None))
    axes.margins(x=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return _save(figure, to)


def draw_bars(bars: Sequence[Bar], to: Path, *, capacity: int | None = None, title: str = "") -> list[Path]:
    """Draw peaks as bars to `to` with each suffix of `FORMATS`; return the paths.

    Raises PicturesUnavailableError without matplotlib, ValueError without bars, OSError when a file cannot be written.
    """
    if not bars:
        raise ValueError("no peaks to draw")
    figure, axes = _figure(9.0, 1.2 + 0.32 * len(bars))
    unit, scale = _scale(max(bar.bytes for bar in bars))
    over = [capacity is not None and bar.bytes > capacity for bar in bars]
    places = range(len(bars))
    colours = ["#cc3311" if each else "#4477aa" for each in over]
    axes.barh(places, [bar.bytes / scale for bar in bars], color=colours)
    axes.set_yticks(places, [bar.label for bar in bars], fontsize=8)
    for place, bar in enumerate(bars):
        axes.annotate(f" {bar.bytes:,}  {bar.says}", (bar.bytes / scale, place), va="center", fontsize=7)
    if capacity is not None:
        axes.axvline(capacity / scale, color="#cc3311", linewidth=1.2)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set(xlabel=f"peak ({unit})", title=title)
    return _save(figure, to)


def _columns(report: Report, width: int) -> list[int]:
    columns = [0] * max(1, min(width, len(report.timeline)))
    for index, point in enumerate(report.timeline):
        column = index * len(columns) // len(report.timeline)
        columns[column] = max(columns[column], point.bytes)
    return columns


def _cell(fraction: float, empty: str) -> str:
    if fraction <= 0:
        return empty
    return _SHADES[max(1, min(8, round(8 * fraction)))]


def _by_name(report: Report) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the phases by name, the wider ones first, so that what is within another is drawn over it."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for phase in report.phases:
        spans.setdefault(phase.name, []).append((phase.start, phase.end))
    return sorted(spans.items(), key=lambda item: (-max(end - start for start, end in item[1]), item[0]))


def _phase_rows(report: Report, width: int) -> Iterable[tuple[str, str]]:
    events = max(1, report.events)
    for name, spans in _by_name(report):
        row = [" "] * width
        for start, end in spans:
            first, last = start * width // (events + 1), max(start, end - 1) * width // (events + 1)
            row[first : last + 1] = "=" * (last + 1 - first)
        yield name, "".join(row)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _scale(most: int) -> tuple[str, float]:
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if most >= size:
            return unit, size
    return "bytes", 1.0


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        # Not pyplot: it would look for a display, and keep every figure alive.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PicturesUnavailableError(
            "picture files need matplotlib: pip install 'trainer-repro[pictures]'. The text rendering works without it."
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, to: Path) -> list[Path]:
    import matplotlib as mpl

    to.parent.mkdir(parents=True, exist_ok=True)
    paths = [to.with_name(f"{to.name}.{suffix}") for suffix in FORMATS]
    # Fixed ids and no date: a picture changes only when what it shows does.
    with mpl.rc_context({"svg.hashsalt": "trainer-repro", "svg.fonttype": "none"}):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(path, dpi=120, metadata=metadata)
    return paths
