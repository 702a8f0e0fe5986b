"""Pictures of memory, as text and as files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog import find
from repro.memory.report import Event, Holder, Refusal, Report, Span, lives, phases, timeline
from repro.observe.observer import Observer
from repro.show import pictures
from repro.show.memory import print_memory
from repro.show.pictures import Bar
from repro.store.reader import read

FAILURE = find("callback-eval-oom")


def report(changes: list[int], capacity: int | None = None) -> Report:
    live = lives(Event(0, change, 0) for change in changes)
    half = len(changes) // 2
    spans = [Span("train step", 0, half), Span("evaluation batch", half, len(changes))]
    return Report(
        device="emulated",
        source="ledger",
        capacity=capacity,
        granularity=512,
        peak_bytes=max(live),
        live_bytes=live[-1],
        events=len(changes),
        timeline=timeline(live),
        phases=phases(live, spans),
        holders=(Holder(4096, 2, "transformers/trainer.py:1 evaluation_loop"),),
        refusals=(Refusal(512, 4096, 4096, 3),) if capacity else (),
    )


SAWTOOTH = report([1 << 20, 1 << 20, -(1 << 20)] * 40, capacity=42 << 20)


def test_the_text_shows_peak_capacity_phases_and_holders() -> None:
    text = pictures.timeline_text(SAWTOOTH)
    for part in (
        "capacity",
        "train step",
        "evaluation batch",
        f"{SAWTOOTH.peak_bytes:,}",
        "evaluation_loop",
        "refused: 1",
    ):
        assert part in text
    assert "█" in text.splitlines()[2]


@given(
    st.lists(st.integers(-5000, 5000), max_size=300), st.one_of(st.none(), st.integers(1, 20000)), st.integers(1, 90)
)
def test_every_report_can_be_drawn_as_text(changes: list[int], capacity: int | None, width: int) -> None:
    text = pictures.timeline_text(report(changes, capacity), width=width, height=6)
    rows = [line for line in text.splitlines() if " |" in line]
    assert len({len(row) for row in rows}) == 1


def test_bars_are_as_long_as_their_bytes_and_marked_over_the_capacity() -> None:
    text = pictures.bars_text([Bar("as reported", 8000, "out of memory"), Bar("C6", 2000, "resolves")], capacity=5000)
    first, second, last = text.splitlines()
    assert first.count("█") == 4 * second.count("█")
    assert "!" in first
    assert "!" not in second
    assert "5,000" in last
    assert pictures.bars_text([]) == "no peaks to draw"


def test_files_are_drawn_and_are_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `pictures`")
    bars = [Bar("as reported", 8000, "out of memory"), Bar("C6", 2000, "resolves")]
    for name in ("one", "two"):
        assert [path.suffix for path in pictures.draw_timeline(SAWTOOTH, tmp_path / name, title="run")] == [
            ".svg",
            ".png",
        ]
        assert len(pictures.draw_bars(bars, tmp_path / f"{name}-bars", capacity=5000)) == 2
    for suffix in (".svg", ".png", "-bars.svg", "-bars.png"):
        content = (tmp_path / f"one{suffix}").read_bytes()
        assert content == (tmp_path / f"two{suffix}").read_bytes()
        assert content[:4] in (b"<?xm", b"\x89PNG")
    drawn = (tmp_path / "one.svg").read_text()
    assert "capacity 44,040,192 bytes" in drawn
    assert "train step" in drawn


def test_a_run_of_a_failure_about_memory_is_shown_with_what_advice_changes_and_drawn_beside_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = Observer(tmp_path)
    for configuration in (FAILURE.reported, FAILURE.reported.but(accumulation=1)):
        observer.observe(FAILURE.trial(configuration))
    records = read(tmp_path).records
    drawn = print_memory(FAILURE, records, tmp_path)
    shown = capsys.readouterr().out
    for part in ("capacity", "allocations refused: 1", "torch_pad_and_concatenate", "accumulation-1", "resolves, -"):
        assert part in shown
    assert {path.name for path in drawn} == {
        f"callback-eval-oom-{what}.{kind}" for what in ("run", "advice") for kind in ("svg", "png")
    }
    assert all(path.parent == tmp_path / "pictures" and path.stat().st_size for path in drawn)
    assert print_memory(find("whisper-double-backward"), records, tmp_path) == []


def test_without_matplotlib_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(pictures.PicturesUnavailableError, match=r"trainer-repro\[pictures\]"):
        pictures.draw_timeline(SAWTOOTH, tmp_path / "x")


def test_sizes_read_well() -> None:
    assert [pictures.human(n) for n in (0, 1023, 1024, 1_048_576, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1 MiB",
        "3 GiB",
    ]
