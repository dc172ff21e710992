"""Audits, alarms and replays of a run: what is read of their files, and what the pages make of it."""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardsmith.auditing.findings import Audit, Example, Finding
from rewardsmith.viewer import bundle, rollout_view, trust_view
from rewardsmith.viewer.run_list import RunList
from rewardsmith.viewer.run_overview import MAX_ROWS, read_overview, read_replays
from rewardsmith.viewer.trust_view import read_trust
from tests.viewer.audited_run import (
    ALARMS,
    FAKE_VERDICT,
    NOTE,
    make_audit,
    make_replay,
    make_watch,
    write_audited_run,
    write_trust,
)
from tests.viewer.test_report import HOSTILE, page_of
from tests.viewer.test_report_page import needs_node, shown


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audited run, which no test changes."""
    return write_audited_run(tmp_path_factory.mktemp("runs") / "run")


def read(folder: Path, content: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "audit.json").write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    found = read_trust(folder / "audit.json")
    json.dumps(found, allow_nan=False)
    return found


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_an_audit_is_read_with_its_numbers_and_its_examples(tmp_path: Path) -> None:
    audit, watch = make_audit(), make_watch()
    write_trust(tmp_path, {"policy": audit.as_json()}, {"policy": watch})
    found = read_trust(tmp_path / "audit.json")
    assert found["unread"] == ""
    (one,) = found["audits"]
    assert (one["name"], one["state"], one["failed"], one["required"]) == ("policy", "failed", len(audit.failed), 6)
    assert one["unmeasured"] == [{"name": "order_bias", "limit": 0.1}]
    assert one["notes"] == [NOTE]
    by_name = {finding["name"]: finding for finding in one["findings"]}
    assert list(by_name)[: one["failed"]] == [finding.name for finding in audit.failed]  # what failed stands first
    for finding in audit.findings:
        read_back = by_name[finding.name]
        for name in ("value", "low", "high"):
            assert read_back[name] == pytest.approx(getattr(finding, name), rel=1e-5)
        assert (read_back["limit"], read_back["count"]) == (finding.limit, finding.count)
        assert (read_back["topic"], read_back["direction"]) == (finding.topic, finding.direction)
        assert (read_back["passed"], read_back["line"]) == (finding.passed, finding.line)
        assert read_back["examples"] == [asdict(example) | {"cut": 0} for example in finding.examples]
    (seen,) = found["watches"]
    assert [alarm["step"] for alarm in seen["alarms"]] == list(ALARMS)
    assert seen["alarms"][0]["examples"][0] == watch["alarms"][0]["examples"][0] | {"cut": 0}
    assert (seen["alarms"][0]["low"], seen["alarms"][0]["high"]) == (0.24, None)


def test_a_run_without_an_audit_has_none(tmp_path: Path) -> None:
    assert read_trust(tmp_path / "audit.json") == {"audits": [], "watches": [], "unread": ""}
    assert read(tmp_path, {"audits": {}, "watch": {}}) == {"audits": [], "watches": [], "unread": ""}


limits = st.one_of(st.none(), st.floats(0, 1))
findings = st.lists(
    st.builds(
        Finding, st.just("name"), st.sampled_from(["truth", "bias"]), st.one_of(st.floats(0, 1), st.just(math.nan)),
        st.just(0.0), st.just(1.0), st.just(5), st.just("line"), limits,
    ),
    max_size=6,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    findings=findings, damaged=st.sets(st.integers(0, 5), max_size=2),
    unmeasured=st.sampled_from([{}, {}, {"order_bias": 0.1}]),
)  # fmt: skip
def test_an_audit_passes_only_if_all_of_it_is_measured_read_and_holds(
    tmp_path: Path, findings: list[Finding], damaged: set[int], unmeasured: dict[str, float]
) -> None:
    content = Audit(findings, unmeasured=unmeasured).as_json()
    lost = [i for i in damaged if i < len(findings)]
    for i in lost:
        content["findings"][i] = {"name": 5}
    (one,) = read(tmp_path, {"audits": {"policy": content}})["audits"]
    kept = [finding for i, finding in enumerate(findings) if i not in lost and finding.limit is not None]
    fails = [finding for finding in kept if not finding.value <= (finding.limit or 0.0)]
    assert one["failed"] == len(fails)
    assert one["unread"] == len(lost)
    whole = "passed" if kept else "free"
    assert one["required"] == len(kept) + len(unmeasured)
    assert one["state"] == ("failed" if fails or unmeasured else "unknown" if lost else whole)


def test_a_verdict_that_the_findings_do_not_bear_is_unknown(tmp_path: Path) -> None:
    passed = Audit([Finding("attack", "attack", 0.0, 0.0, 0.1, 9, "no attack is rewarded", 0.0)]).as_json()
    for content, state in (
        (passed, "passed"),
        (passed | {"passed": False}, "unknown"),
        (passed | {"findings": []}, "unknown"),
        (passed | {"findings": [], "passed": None}, "free"),
        (make_audit().as_json() | {"passed": True}, "failed"),
        (passed | {"unmeasured": {"order_bias": 0.1}}, "failed"),
        (passed | {"unmeasured": ["order_bias"]}, "unknown"),
        (passed | {"findings": [passed["findings"][0] | {"direction": "sideways"}]}, "unknown"),
    ):
        (one,) = read(tmp_path, {"audits": {"a": content}})["audits"]
        assert one["state"] == state


WATCH = make_watch()


@pytest.mark.parametrize(
    "content",
    [
        "", "null", "[1]", "[" * 100_000, '{"audits": {"policy": ', '{"audits": [1]}', '{"watch": 5}',
        {"audits": {"a": None}}, {"audits": {"a": {"findings": []}}}, {"audits": {"a": {"passed": True}}},
        {"watch": {"a": {}}}, {"watch": {"a": WATCH | {"reference": 5}}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_the_rest_of_the_run_is_shown(tmp_path: Path, content: Any) -> None:
    found = read(tmp_path, content)
    assert "audit.json" in found["unread"]
    data = page_of(tmp_path).data
    assert data["trust"] == found


@pytest.mark.parametrize(
    "alarm", [None, {}, WATCH["alarms"][0] | {"step": "1"}, WATCH["alarms"][0] | {"step": 1.5, "line": 5}]
)
def test_an_alarm_that_cannot_be_read_is_counted(tmp_path: Path, alarm: Any) -> None:
    (one,) = read(tmp_path, {"watch": {"a": WATCH | {"alarms": [alarm, *WATCH["alarms"]]}}})["watches"]
    assert one["unread"] == 1
    assert [found["step"] for found in one["alarms"]] == list(ALARMS)


def test_a_damaged_example_takes_nothing_from_its_number(tmp_path: Path) -> None:
    content = make_audit().as_json()
    content["findings"][0]["examples"].insert(0, {"text": 5})
    (one,) = read(tmp_path, {"audits": {"a": content}})["audits"]
    assert one["unread"] == 0
    (first,) = [finding for finding in one["findings"] if finding["name"] == "false_positive"]
    assert [example["probe"] for example in first["examples"]] == ["wrong-answer"]


def test_a_file_that_would_never_end_or_is_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "audit.json")
    assert "audit.json" in read_trust(tmp_path / "audit.json")["unread"]
    (tmp_path / "audit.json").unlink()
    monkeypatch.setattr(rollout_view, "MAX_FILE", 100)
    assert "audit.json" in read(tmp_path, {"audits": {"a": make_audit().as_json()}})["unread"]


def test_all_sizes_are_bounded(tmp_path: Path) -> None:
    long = "x" * 2_500
    example = Example(long, long, long, 1.0, long)
    finding = Finding(long, "attack", 0.5, 0.4, 0.6, 9, long, 0.6, [example] * 7)
    bad = replace(finding, limit=0.1)
    audit = Audit([*[finding] * 100, bad], [long] * 200).as_json()
    alarm = make_watch()["alarms"][0] | {"line": long, "examples": [asdict(example)] * 7}
    found = read(tmp_path, {"audits": {"a": audit}, "watch": {"a": WATCH | {"alarms": [alarm] * 60}}})
    (one,), (watch,) = found["audits"], found["watches"]
    assert one["findings"][0]["passed"] is False  # what failed is not left out
    assert (len(one["findings"]), one["more"]) == (trust_view.MAX_FINDINGS, 101 - trust_view.MAX_FINDINGS)
    assert (len(watch["alarms"]), watch["more"]) == (trust_view.MAX_ALARMS, 60 - trust_view.MAX_ALARMS)
    assert one["findings"][0]["examples"][0]["cut"] == 2_500 - trust_view.MAX_TEXT
    per_item = trust_view.MAX_EXAMPLES * (trust_view.MAX_TEXT + 1_200) + 2_000
    assert len(json.dumps(found)) < (trust_view.MAX_FINDINGS + trust_view.MAX_ALARMS) * per_item + 80 * 700
    many = read(tmp_path, {"audits": {str(i): {"findings": [], "passed": None} for i in range(99)}})
    assert len(many["audits"]) == trust_view.MAX_STAGES


# ---- replays ---------------------------------------------------------------------------------------------------------


def test_replays_have_their_tables_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "replays"
    folder.mkdir()
    good = make_replay().as_json()
    rows = [["a", 1, float("nan"), 2]] * (MAX_ROWS + 3)
    files = {
        "a": good, "b": {"metrics": {}}, "c": good | {"tables": [{"title": 5}]}, "d": good | {"tables": 5},
        "e": good | {"tables": [good["tables"][0] | {"rows": rows}]},
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "f.json").write_text("{")
    found = {one["name"]: one for one in read_replays(tmp_path)}
    assert [name for name, one in found.items() if one.get("unread")] == ["b", "c", "d", "f"]
    assert found["a"]["tables"] == [good["tables"][0] | {"more": 0}]
    (long,) = found["e"]["tables"]
    assert (len(long["rows"]), long["more"], long["rows"][0]) == (MAX_ROWS, 3, ["a", 1, None, 2])


# ---- viewer and bundle -----------------------------------------------------------------------------------------------


def test_a_change_of_an_audit_or_a_replay_is_seen_and_is_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    folder = write_audited_run(tmp_path / "runs" / "run", steps=8)
    runs = RunList([tmp_path / "runs"])
    one = runs.run("run")
    versions = [one.version]
    assert one.overview()["trust"]["audits"][0]["state"] == "failed"
    write_trust(folder, {}, {"policy": make_watch((5,))})
    versions.append(one.version)
    assert one.overview()["trust"]["audits"] == []
    (folder / "replays" / "other.json").write_text(json.dumps(make_replay().as_json()))
    versions.append(one.version)
    assert len(set(versions)) == 3
    bundle.write_bundle(runs, tmp_path / "site")
    kept = json.loads((tmp_path / "site" / "data" / "r0" / "overview.json").read_text())
    assert kept["trust"] == read_overview(folder)["trust"]
    assert [replay["name"] for replay in kept["replays"]] == ["other", "rule-only"]
    assert (tmp_path / "site" / "web" / "trust.js").exists()


# ---- the page --------------------------------------------------------------------------------------------------------

PANEL = 'page.all("section").find((one) => one["@id"] === "trust")'


@needs_node
def test_the_panel_has_verdicts_intervals_limits_and_examples(run: Path) -> None:
    query = f"""(() => {{ const panel = {PANEL}, rows = panel.all("svg").map((one) => one["@aria-label"]);
      return [panel.text(), rows, panel.all("pre").map((one) => one.text()), page.all("nav")[0].text()]; }})()"""
    text, intervals, texts, rail = shown(run, query)
    audit = make_audit()
    assert f"✗ failed {len(audit.failed)}, could not measure 1 of 6 requirements" in text
    assert "order_bias is required, and was not measured" in text
    assert text.count("✗ failed") == 1 + len(audit.failed)
    assert text.count("✓ passed") == 3
    assert "0.081, 95% interval 0.052 to 0.110, limit ± 0.050" in intervals
    assert len(intervals) == len(audit.findings)
    assert texts.count(FAKE_VERDICT) == 2
    assert "✕ no score" in text
    assert "(empty)" in text
    assert NOTE in text
    assert "✗ 2 alarms, the first at step 25" in text
    assert "✗ see why" in rail
    titles = ["Right and wrong answers", "Attacks", "Bias", "Worth for learning", "Cost"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def in_percent(value: float, low: float, high: float) -> float:
    """Return where a value stands on a scale."""
    return 100 * (value - low) / (high - low)


@needs_node
def test_the_side_that_a_limit_forbids_is_tinted(tmp_path: Path) -> None:
    found = [
        Finding("separation", "truth", 0.97, 0.9, 1.0, 9, "a share of pairs", 0.9),
        Finding("attack", "attack", 0.2, 0.1, 0.3, 9, "a share of attacks", 0.1),
        Finding("length_bias", "bias", -0.3, -0.4, -0.2, 9, "a bias", 0.1),
        Finding("spread", "learning", 0.5, 0.4, 0.6, 9, "a spread", 0.2),
    ]
    write_trust(tmp_path, {"a": Audit(found).as_json()}, {})
    query = f"""{PANEL}.all("svg").map((one) => ["beyond", "limit"]
      .map((kind) => [...one.all("rect"), ...one.all("line")]
      .filter((part) => part["@class"] === kind).map((part) => [part["@x"] || part["@x1"], part["@width"] || ""])))"""
    tinted = {}
    for name, (fields, lines) in zip([one.name for one in found], shown(tmp_path, query), strict=True):
        stretches = [(float(x[:-1]), float(x[:-1]) + float(width[:-1])) for x, width in fields]
        tinted[name] = ([pytest.approx(pair) for pair in stretches], [pytest.approx(float(x[:-1])) for x, _ in lines])
    share = {"low": -0.02, "high": 1.02}
    assert tinted["separation"] == ([(0, in_percent(0.9, **share))], [in_percent(0.9, **share)])
    assert tinted["attack"] == ([(in_percent(0.1, **share), 100)], [in_percent(0.1, **share)])
    low, high = -0.4 - 0.06 * 0.5, 0.1 + 0.06 * 0.5
    ends = [in_percent(-0.1, low, high), in_percent(0.1, low, high)]
    assert tinted["length_bias"] == ([(0, ends[0]), (ends[1], 100)], ends)
    spread = in_percent(0.2, 0, 0.6 * 1.06)
    assert tinted["spread"] == ([(0, spread)], [spread])


@needs_node
def test_the_watch_of_a_stage_has_marks_a_band_and_its_alarms(run: Path) -> None:
    query = """(() => { const stage = window.rs.data.stages[1], watch = window.rs.watchOf(window.rs.data, stage);
      const fold = page.all("details").find((one) => one.all("summary")[0].text().startsWith("Watch"));
      const labels = (lines) => lines.map((one) => one.label);
      return [window.rs.watchCharts(stage, watch).map(([name, lines, more]) => [name, labels(lines), more]),
        fold.text(), fold.all("div").filter((one) => one["@class"] === "plot").map((one) => one["@aria-label"]),
        window.rs.watchCharts(stage, null)[0][2].marks,
        page.all("span").filter((one) => one["@class"] === "metric").map((one) => one.text())]; })()"""
    charts, text, labels, without, names = shown(run, query)
    marks = list(ALARMS)
    assert charts[0] == ["watch/reward", ["reward", "reference"], {"marks": marks}]
    assert charts[1] == [
        "watch/false_discovery", ["rewarded, but wrong", "high", "low", "limit"], {"marks": marks, "band": [1, 2]},
    ]  # fmt: skip
    assert [one[0] for one in charts[2:]] == [
        f"watch/{name}" for name in ("gap", "correlation", "length", "repetition")
    ]
    assert without == marks  # from the metrics, where audit.json is lost
    assert all("marked: steps 25, 30" in label for label in labels)
    assert text.count(FAKE_VERDICT) == 2
    assert "Step 30: 36 % of the rewarded answers are wrong" in text
    assert len(names) == len(set(names))  # a curve of the watch is drawn once
    assert "watch/alarm" not in names


@needs_node
def test_a_replay_stands_below_its_name(run: Path) -> None:
    found = shown(run, 'page.all("section").find((one) => one["@aria-label"] === "Replay rule-only").text()')
    assert "Replay: rule-only" in found
    assert "arith-9-9 30 −0.220 4" in " ".join(found.split())


@needs_node
@pytest.mark.parametrize(
    ("audits", "watch", "words"),
    [
        ({"a": Audit(make_audit().findings[:2]).as_json()}, {}, ["✓ passed its requirement", "✓ audited"]),
        ({"a": Audit([], ["nothing was measured"]).as_json()}, {}, ["no requirements", "nothing was measured"]),
        (
            {"a": Audit(make_audit().findings[:2], unmeasured={"order_bias": 0.1}).as_json()},
            {},
            ["✗ could not measure 1 of 2 requirements", "order_bias is required, and was not measured", "✗ see why"],
        ),
        ({}, {"policy": make_watch(())}, ["✓ no alarm", "against arithmetic"]),
        ({"a": {"findings": [5], "passed": True}}, {}, ["? cannot be read completely", "1 measure could not be read"]),
        ({"a": 5}, {}, ["? audit.json cannot be read"]),
    ],
)
def test_the_headline_says_what_is_known(tmp_path: Path, audits: Any, watch: Any, words: list[str]) -> None:
    write_trust(tmp_path, audits, watch)
    text = shown(tmp_path, "page.text()")
    for word in words:
        assert word in text


@needs_node
def test_hostile_text_of_an_audit_stays_text(tmp_path: Path) -> None:
    found = [
        Finding(text, text, 0.5, 0.4, 0.6, 9, text, 0.1, [Example(text, text, text, 1.0, text)]) for text in HOSTILE
    ]
    alarm = {"step": 3, "measure": HOSTILE[0], "value": 1, "limit": 0, "line": HOSTILE[0]}
    alarm["examples"] = [asdict(found[0].examples[0])]
    watch = {"on_alarm": HOSTILE[0], "reference": HOSTILE[1], "every": 5, "alarms": [alarm]}
    write_trust(tmp_path, {HOSTILE[0]: Audit(found, HOSTILE).as_json()}, {HOSTILE[1]: watch})
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"stage": HOSTILE[1], "step": 3, "metrics": {}}) + "\n")
    page = page_of(tmp_path)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not set(page.texts["script"][0]) & set("<>&\0")
    texts = shown(tmp_path, f'{PANEL}.all("pre").map((one) => one.text())')
    assert texts[:3] == HOSTILE[:3]
    assert "\0" not in "".join(texts)


@needs_node
def test_a_run_without_an_audit_has_no_panel(tmp_path: Path) -> None:
    assert shown(tmp_path, f"[{PANEL} === undefined, page.all('nav')[0].text().includes('reward')]") == [True, False]
