"""The report of a run: complete, bounded, and safe whatever the folder holds."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Failure, Message, Prompt, Score
from rewardsmith.runs.run_facts import run_facts
from rewardsmith.runs.summary import Summary
from rewardsmith.viewer import report_examples
from rewardsmith.viewer.report import COMPONENTS, web_file, write_report
from rewardsmith.viewer.run_overview import MAX_POINTS, thinned
from tests.runs.fake_run import line, write_fake_run, write_lines

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "{{script}} {{data}}",
    "&lt;b&gt; &amp; \u2028 \u2029",
    "NUL \0 and bell \aand back \u202e wards",
    "'\"`${alert(1)}",
]


class Page(HTMLParser):
    """The elements of a page, and what its script elements hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self.inside.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside[-1]][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise AssertionError(f"{name} is no JSON")

        content: dict[str, Any] = json.loads(self.texts["script"][0], parse_constant=refuse)
        return content


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    assert [p.name for p in folder.iterdir() if "report" in p.name] == ["report.html"]
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(write_fake_run(tmp_path_factory.mktemp("runs") / "run"))


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_is_reported_from_its_title_to_its_recipe(whole: Page) -> None:
    data = whole.data
    assert data["state"] == "finished"
    assert whole.texts["title"] == [data["title"]]
    assert [stage["name"] for stage in data["stages"]] == ["sft", "policy", "evaluate"]
    policy = data["stages"][1]
    assert policy["before"]["validation/mean@4"] < 0.4 < 0.8 < policy["after"]["validation/mean@4"]
    curves = {curve["name"]: curve for curve in policy["curves"]}
    assert curves["validation/mean@4"]["x"] == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert curves["reward/mean"]["x"] == list(range(1, 41))
    assert 'type = "clip"' in data["recipe"]


def test_without_a_validation_before_training_nothing_stands_before(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(folder / "metrics.jsonl", [line for line in lines if line["step"]])
    summary = json.loads((folder / "summary.json").read_text())
    summary["stages"][1]["before"] = {}
    (folder / "summary.json").write_text(json.dumps(summary))
    policy = page_of(folder).data["stages"][1]
    assert policy["before"] == {}
    assert policy["after"]["validation/mean@4"] > 0.8


def test_the_same_prompts_stand_before_and_after(whole: Page) -> None:
    found = whole.data["stages"][1]["rollouts"]
    assert [[group["step"] for group in pair] for pair in found["pairs"]] == [[0, 40]] * 6
    assert [message["role"] for message in found["pairs"][0][0]["prompt"]["messages"]] == ["system", "user"]
    rollouts = [r for pair in found["pairs"] for group in pair for r in group["rollouts"]]
    assert all((r["value"] is None) == (r["failure"] is not None) for r in rollouts)
    trained = [r for group in found["first"] for r in group["rollouts"] if not group["dropped"]]
    assert all((r["advantage"] is None) == (r["failure"] is not None) for r in trained)
    assert whole.data["stages"][1]["parts"] == ["rule", "judge"]
    assert {part["name"] for r in rollouts for part in r["parts"]} == {"rule", "judge"}
    assert {group["step"] for group in found["first"]} == {1}
    assert {group["step"] for group in found["last"]} == {40}
    assert found["drops"][0][0] == "too_easy"


# ---- the page itself -------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_and_allows_nothing(whole: Page) -> None:
    assert not [tag for tag, _ in whole.tags if tag in ("link", "img", "iframe", "object", "base", "form")]
    assert not [attrs for _, attrs in whole.tags if attrs.get("src") or (attrs.get("href") or "#")[0] != "#"]
    policy = next(a["content"] for t, a in whole.tags if t == "meta" and a.get("http-equiv")) or ""
    hashes = re.findall(r"(\w+)-src 'sha256-([^']+)'", policy)
    inline = {"style": whole.texts["style"][0], "script": whole.texts["script"][1]}
    expected = {k: base64.b64encode(hashlib.sha256(v.encode()).digest()).decode() for k, v in inline.items()}
    assert dict(hashes) == expected
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_scripts_never_make_markup_out_of_text() -> None:
    own = [name for name in (*COMPONENTS, "report.js") if not name.startswith("uplot/")]
    script = "".join(web_file(name) for name in own)
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(|https?:(?!//www\.w3)", script
    )


def test_hostile_text_stays_text_wherever_it_stands(tmp_path: Path, whole: Page) -> None:
    rows, metrics = [], []
    for i, text in enumerate(HOSTILE):
        prompt = Prompt(text, [Message(text, text)], source=text, answer=text)
        failed = Score(failure=Failure("refused", text), parts={text: Score(0.5, feedback=text)}, feedback=text)
        rows.append(line(text, failed, dropped=text, prompt=prompt))
        metrics.append({"stage": text, "step": i, "metrics": {text: 1.0, f"validation/{text}": 1.0}})
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows)
    write_lines(tmp_path / "metrics.jsonl", metrics)
    (tmp_path / "recipe.toml").write_text("\n".join(HOSTILE))
    (tmp_path / "summary.json").write_text(
        json.dumps({"title": HOSTILE[0] + HOSTILE[1] + "\0\ud800", "state": HOSTILE[0]})
    )
    page = page_of(tmp_path)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in whole.tags]
    assert page.texts["script"][1] == whole.texts["script"][1]
    data = page.data
    assert [stage["name"] for stage in data["stages"]] == [*HOSTILE, "policy"]
    shown = data["stages"][-1]["rollouts"]["first"]
    assert [group["rollouts"][0]["text"] for group in shown] == HOSTILE[: report_examples.MAX_TRAINING]
    raw = page.texts["script"][0]
    assert raw.isascii()
    assert not set(raw) & set("<>&\0")


def test_an_empty_folder_has_a_report(tmp_path: Path) -> None:
    data = page_of(tmp_path).data
    assert data["stages"] == []
    assert data["state"] == "unknown"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_files_that_were_cut_off_are_read_as_far_as_they_go(tmp_path: Path, share: float) -> None:
    write_fake_run(tmp_path, steps=8, prompts=2)
    for path in [*tmp_path.glob("*.*"), *tmp_path.glob("rollouts/*")]:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
    data = page_of(tmp_path).data
    assert bool([stage for stage in data["stages"] if stage["curves"]]) == (share > 0)
    assert data["unread"] <= 1


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_ten_thousand_groups_are_read_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rollouts").mkdir()
    row = json.dumps(line("x" * 100, Score(1.0), step=777))
    with (tmp_path / "rollouts" / "policy.jsonl").open("w") as file:
        file.writelines(row.replace("777", str(step), 1) + "\n" for step in range(10_000))
    monkeypatch.setattr(report_examples, "MAX_END", 100_000)
    found = page_of(tmp_path).data["stages"][0]["rollouts"]
    assert not found["whole"]
    assert found["unread"] == 0
    assert 100 < found["groups"] < 1_000
    assert [found[key][0]["step"] for key in ("first", "last")] == [0, 9_999]
    assert (tmp_path / "report.html").stat().st_size < 200_000


def test_long_texts_and_large_groups_are_cut_with_a_note(tmp_path: Path) -> None:
    row = line("long " * 2_000, Score(1.0, feedback="f" * 3_000))
    group = row["scored"]["group"]
    group["rollouts"] *= 20
    row["scored"]["scores"] *= 20
    group["prompt"]["messages"] *= 30
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row])
    (shown,) = page_of(tmp_path).data["stages"][0]["rollouts"]["first"]
    assert (len(shown["rollouts"]), shown["more"]) == (8, 12)
    first = shown["rollouts"][0]
    assert (len(first["text"]), first["cut"]) == (4_000, 6_000)
    assert first["feedback"]["cut"] == 2_000
    assert [r["advantage"] for r in shown["rollouts"]] == [0.25] + [None] * 7
    assert shown["prompt"]["earlier"] == 18


def test_thinning_keeps_the_ends_and_every_spike() -> None:
    points = [(i, math.sin(i / 500)) for i in range(50_000)]
    points[12_345] = (12_345, 9.0)
    points[33_333] = (33_333, math.nan)
    kept = thinned(points, MAX_POINTS)
    assert MAX_POINTS / 2 < len(kept) <= MAX_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (12_345, 9.0) in kept
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert thinned(points[:10], 10) == points[:10]


# ---- facts in the head -----------------------------------------------------------------------------------------------


def test_the_head_has_date_models_seed_device_and_versions(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=8, prompts=1)
    recipe = 'seed = 7\n[models.policy]\ninit = "tiny-llama"\n[models.critic]\ncopy_of = "policy"\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    assert page_of(tmp_path).data["facts"] == [["models", "policy: tiny-llama, critic: copy of policy"], ["seed", "7"]]
    summary = json.loads((tmp_path / "summary.json").read_text())
    facts = {"started": "2026-01-02T03:04:05+00:00", "device": "CPU, 2 cores", "versions": {"rewardsmith": "9"}}
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"facts": facts}))
    assert dict(page_of(tmp_path).data["facts"]) == {
        "started": "2026-01-02T03:04:05+00:00",
        "models": "policy: tiny-llama, critic: copy of policy",
        "seed": "7",
        "device": "CPU, 2 cores",
        "versions": "rewardsmith 9",
    }


def test_a_resumed_run_keeps_its_date() -> None:
    first = run_facts({}, {})
    assert first["versions"]["rewardsmith"]
    assert first["device"]
    assert run_facts({}, {"started": "before"})["started"] == "before"
    table = Summary("t", facts=first)
    assert Summary.from_json(json.loads(table.dumps())).facts == first
    older = {name: value for name, value in json.loads(table.dumps()).items() if name != "facts"}
    assert Summary.from_json(older).facts == {}
