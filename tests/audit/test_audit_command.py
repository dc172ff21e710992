"""`rewardsmith audit`, the stage of the same name and `rs.audit`: verdicts, settings, notes and what is printed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rewardsmith as rs
from rewardsmith.auditing.findings import KNOWN, SHARES, Audit, Finding
from rewardsmith.console import _rendered
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import explain, parse_recipe
from rewardsmith.trainers.evaluate.audit_reward import audit_result
from tests.audit.audited import sums
from tests.audit.test_gate_and_watch import contains, table
from tests.command_line import call

QUICK = {"prompts": 2, "max_attacks": 3}
RULE = {"type": "rule", "rule": "math"}


def finding(name: str, value: float, topic: Any = "attack", count: int = 12) -> Finding:
    return Finding(name, topic, value, value, value, count, f"the line of {name}")


# ---- the verdict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "passed"),
    [
        ({}, None),
        ({"attack": 0.0}, True),
        ({"separation": 0.99}, False),
        ({"order_bias": 0.1}, False),
        ({"attack": 0.0, "order_bias": 0.1}, False),
    ],
)
def test_what_could_not_be_measured_has_not_passed(require: dict[str, float], passed: bool | None) -> None:
    audit = Audit([finding("attack", 0.0), finding("separation", 0.95, "truth")]).required(require)
    content, result = audit.as_json(), audit_result(audit)
    assert content["passed"] is passed
    assert content["require"] == require
    assert list(content["unmeasured"]) == [name for name in require if name == "order_bias"]
    assert bool(result.problem) == (passed is False)
    assert sum("order_bias" in note for note in result.notes) == ("order_bias" in require)  # once


@pytest.mark.parametrize(
    ("name", "value", "direction", "passed"),
    [
        ("separation", 0.2, "at_least", False), ("ceiling", 0.4, "at_least", True), ("attack", 0.4, "at_most", False),
        ("attack/echo", 0.2, "at_most", True), ("length_bias", -0.4, "within", False),
        ("length_bias", -0.2, "within", True),
    ],
)  # fmt: skip
def test_the_direction_of_a_limit_is_in_the_findings(name: str, value: float, direction: str, passed: bool) -> None:
    (one,) = Audit([finding(name, value)]).required({name: 0.3}).as_json()["findings"]
    assert (one["direction"], one["passed"], one["topic"]) == (direction, passed, "attack")
    (table,) = (one for one in audit_result(Audit([finding(name, value)]).required({name: 0.3})).tables[:1])
    sign = {"at_least": "≥", "at_most": "≤", "within": "±"}[direction]
    assert f"{sign} 0.3 {'ok' if passed else 'FAILED'}" in table.rows[0]


def test_one_requirement_is_no_plural() -> None:
    held = Audit([finding("attack", 0.0), finding("attack_mean", 0.0)])
    assert audit_result(held.required({"attack": 0.0})).notes == ["passed: the requirement holds"]
    both = held.required({"attack": 0.0, "attack_mean": 0.0})
    assert audit_result(both).notes == ["passed: all 2 requirements hold"]


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KNOWN, "attack/echo"])
def test_a_limit_that_could_not_matter_is_refused(name: str) -> None:
    def check(limit: float) -> None:
        parse_recipe(table({"require": {name: limit}}))

    for limit in (0, 0.5, 1):
        check(limit)
    for limit, refused in ((-1, name != "ceiling"), (2, name in SHARES or name == "attack/echo")):
        if refused:
            with pytest.raises(RecipeError, match=rf"(?s)stages\.0\.audit\.require.*{name} is {limit}.*give a limit"):
                check(limit)
        else:
            check(limit)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of attacks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").write_text("{wrong}, says my supervisor\n")
    return tmp_path


def test_a_recipe_names_the_file_of_attacks(place: Path) -> None:
    recipe = parse_recipe(table({"own_attacks": "own.txt"}))
    settings: Any = recipe.stages[0].settings
    assert settings.audit.own_attacks == Path("own.txt")
    assert 'own_attacks = "own.txt"' in explain(recipe)
    with pytest.raises(RecipeError, match=r"stages\.0\.audit\.own_attacks"):
        parse_recipe(table({"own_attacks": 5}))


def test_files_are_text_or_paths_in_python(place: Path) -> None:
    run = place / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("")
    for kind in (str, Path):
        files: dict[str, Any] = {"own_attacks": kind("own.txt"), "out": kind("found.json"), "run_folder": kind("run")}
        found = rs.audit(RULE, sums(3), prompts=2, **files)
        assert found.metrics["attack/own"] == 0.0
        for file, content in (
            ("found.json", lambda text: text),
            ("run/audit.json", lambda text: text["audits"]["audit"]),
        ):
            assert content(json.loads((place / file).read_text())) == found.facts["audit"]
            (place / file).unlink()
    with pytest.raises(UserError, match="is no run folder"):
        rs.audit(RULE, sums(3), run_folder="own.txt", **QUICK)


# ---- a stage without a model -----------------------------------------------------------------------------------------

STAGE = """\
data.sums = { type = "arithmetic", operations = 1 }
[[stages]]
type = "audit"
data = "sums"
reward = { type = "rule", rule = "arithmetic" }
prompts = 2
max_attacks = 3
"""


def test_an_audit_stage_needs_no_model(place: Path) -> None:
    (place / "audit.toml").write_text(f"{STAGE}require = {{ attack = 0.0, separation = 1.0 }}\n")
    explained = call("explain", "audit.toml")
    assert explained.status == 0, explained.err
    ended = call("run", "audit.toml", "--folder", "run")
    assert ended.status == 0, ended.err
    assert rs.load_run("run").state == "finished"
    found = json.loads((place / "run" / "audit.json").read_text())["audits"]["audit"]
    assert (found["passed"], found["require"]) == (True, {"attack": 0.0, "separation": 1.0})


def test_a_stage_says_that_its_reference_was_not_used(place: Path) -> None:
    (place / "audit.toml").write_text(f'{STAGE}reference = {{ type = "rule", rule = "arithmetic" }}\n')
    assert call("run", "audit.toml", "--folder", "run").status == 0
    (note,) = json.loads((place / "run" / "audit.json").read_text())["audits"]["audit"]["notes"]
    assert note == "the reference was not used: no model writes answers; set model"


# ---- notes -----------------------------------------------------------------------------------------------------------

POLICY = """\
data.sums = { type = "arithmetic", operations = 1 }
models.policy.init = "tiny-llama"
[[stages]]
type = "policy"
model = "policy"
data = "sums"
steps = 1
rollouts_per_prompt = 2
sampling.max_tokens = 4
reward = { type = "rule", rule = "arithmetic" }
validation = { data = "sums", prompts = 2, reward = { type = "rule", rule = "exact" } }
"""
RANDOM = "the weights of policy are random"
REFERENCE = "the reference is validation.reward of the stage policy"


def notes(**settings: Any) -> list[str]:
    found: list[str] = list(rs.audit("policy.toml:policy", **QUICK, **settings).notes)
    return found


def begin(notes: list[str], *lines: str) -> bool:
    """Whether there are as many notes as lines, each with its beginning."""
    return len(notes) == len(lines) and all(note.startswith(line) for note, line in zip(notes, lines, strict=True))


def test_notes_say_what_was_taken_from_the_stage_and_what_was_left_out(place: Path) -> None:
    (place / "policy.toml").write_text(POLICY)
    assert begin(notes(), RANDOM)
    assert "set model" in notes()[0]
    assert begin(notes(reference=RULE), "the reference was not used: no model writes answers", RANDOM)
    assert begin(notes(model="tiny-llama", samples=2), REFERENCE)
    assert begin(notes(model="tiny-llama", samples=2, reference=contains))
    assert begin(notes(model="tiny-llama", samples=0, reference=RULE), "the reference was not used: samples = 0")


# ---- what is printed -------------------------------------------------------------------------------------------------


def printed(audit: Audit, width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width)
    for one in audit_result(audit).tables:
        console.print(_rendered(one))
    return file.getvalue()


FAMILIES = ("echo", "empty", "hollow", "language", "padding", "repetition", "retraction")


@pytest.mark.parametrize("width", [80, 120])
def test_families_that_are_not_paid_for_share_a_row(width: int) -> None:
    paid = finding("attack/injection", 0.5)
    found = [finding("attack", 0.5), paid, *(finding(f"attack/{name}", 0.0) for name in FAMILIES)]
    audit = Audit(found).required({"attack/echo": 0.0})
    (table,) = audit_result(audit).tables
    assert [row[0] for row in table.rows] == ["attack", "attack/injection", "attack/echo", "attack/…"]
    others = [name for name in FAMILIES if name != "echo"]  # which has a limit
    line = f"none of {12 * len(others)} attacks of {', '.join(others)} is paid for"
    assert table.rows[-1][-1] == line
    text = printed(audit, width)
    assert len(text.splitlines()) < 20
    assert all(len(row) <= width for row in text.splitlines())
    assert set(others) <= set(text.replace(",", " ").split())


def test_the_help_shows_how_a_limit_is_given() -> None:
    text = " ".join(call("audit", "--help").out.replace("│", " ").split())
    assert "--require.NAME LIMIT" in text
    assert "--run-folder PATH" in text
