"""Means, intervals, tables and figures of the headline claims, and that what is committed follows from the results."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import headline_pages
import headline_results
import pytest
from headline_claims import ACCURACY, CLAIMS, Claim, Column, Difference, Panel, Reach
from headline_recipes import Plan, digest_of
from headline_results import Mean, Seed, apart, band, mean, read, steps_to_reach, value_of, write
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.recipe import load_table
from tests.headlines import HEADLINES

RESULTS = HEADLINES / "results"
RUN = {"arms": ["one"], "changes": [], "device": "a CPU", "seconds": 1800.0, "version": "1", "torch": "2", "model": "m"}


# ---- statistics ----------------------------------------------------------------------------------------------------


def students_t(x: float, degrees: int, n: int = 20_000) -> float:
    """Return P(T <= x) by Simpson's rule over the density of Student's t from 0 to x."""
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    values = [scale * (1 + (x * i / n) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(n + 1)]
    odd, even = math.fsum(values[1:-1:2]), math.fsum(values[2:-1:2])
    return 0.5 + x / n / 3 * (values[0] + 4 * odd + 2 * even + values[-1])


@pytest.mark.parametrize("degrees", range(1, 10))
def test_the_points_of_students_t_are_right(degrees: int) -> None:
    assert students_t(headline_results.T_975[degrees - 1], degrees) == pytest.approx(0.975, abs=5e-5)


def test_a_mean_has_the_interval_of_students_t() -> None:
    found = mean([0.2, None, 0.4, 0.9])
    assert found is not None
    middle = (0.2 + 0.4 + 0.9) / 3
    variance = ((0.2 - middle) ** 2 + (0.4 - middle) ** 2 + (0.9 - middle) ** 2) / 2
    assert found.value == pytest.approx(middle)
    assert found.half == pytest.approx(4.303 * math.sqrt(variance / 3))
    assert found.seeds == 3
    assert mean([0.5]) == Mean(0.5, None, 1)
    assert mean([None]) is None


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(-5, 5), st.floats(0.1, 5))
def test_an_interval_moves_and_stretches_with_its_values(values: list[float], by: float, factor: float) -> None:
    found, moved = mean(values), mean([factor * value + by for value in values])
    assert found is not None
    assert moved is not None
    assert moved.value == pytest.approx(factor * found.value + by, abs=1e-9)
    assert moved.half == pytest.approx(factor * (found.half or 0), abs=1e-6)


# ---- arms ----------------------------------------------------------------------------------------------------------

CLAIM = Claim(
    "Two beat one",
    arms={"one": "one reward", "two": "two rewards", "three": "three"},
    columns=(ACCURACY, Column("a flaw", "answers/flaw/copied"), Reach("steps to it", "policy/accuracy")),
    panels=(Panel("accuracy", "policy/accuracy"),),
    decides=(
        Difference(ACCURACY, "two", "one"),
        Difference(ACCURACY, "three", "two"),
        Difference(ACCURACY, "one", "start"),
        Difference(Column("tokens", "answers/length", "tokens"), "two", "one"),
    ),
)


def stages(one: float, two: float, curve: list[float | None]) -> Mapping[str, Any]:
    return {
        "start_answers": {"values": {"accuracy": 0.25, "remarks": 0.0}},
        "one": {"values": {}, "curves": {"step": [0, 10, 20], "accuracy": [0.25, 0.4, 0.5]}},
        "one_answers": {"values": {"accuracy": one, "remarks": 0.0, "flaw/copied": 0.125}},
        "two": {"values": {}, "curves": {"step": [0, 10, 20], "accuracy": curve}},
        "two_answers": {"values": {"accuracy": two, "remarks": 0.0}},
        "three": {"values": {}, "curves": {"step": [0, 10, 20], "accuracy": [0.1, 0.2, 0.3]}},
        "three_answers": {"values": {"accuracy": 0.5 * two, "remarks": 0.0}},
    }


SEEDS = [
    Seed(0, [RUN], stages(0.50, 0.58, [0.2, 0.5, 0.6])),
    Seed(1, [RUN], stages(0.40, 0.52, [0.3, None, 0.5])),
    Seed(2, [RUN], stages(0.60, 0.70, [0.3, 0.3, 0.4])),
]


def test_differences_are_taken_between_arms_of_the_same_seed() -> None:
    two, three, start, tokens = (apart(CLAIM, one, SEEDS) for one in CLAIM.decides)
    assert two == pytest.approx([0.58 - 0.50, 0.52 - 0.40, 0.70 - 0.60])
    assert three == pytest.approx([-0.5 * 0.58, -0.5 * 0.52, -0.5 * 0.70])
    assert start == pytest.approx([0.25, 0.15, 0.35])
    assert tokens == [None] * 3


def test_a_difference_decides_where_its_interval_is_on_one_side_of_zero() -> None:
    headings, cells = headline_pages.decision_table(CLAIM, SEEDS)
    rows = plain(cells)
    assert headings == ("what decides", "of", "difference", "")
    half = 4.303 * math.sqrt((0.02**2 + 0.02**2) / 2 / 3)
    assert rows[0] == ("right", "two rewards against one reward", f"+10.0 ± {100 * half:.1f} points", "higher")
    half = 4.303 * math.sqrt((0.01**2 + 0.04**2 + 0.05**2) / 2 / 3)
    assert rows[1] == ("right", "three against two rewards", f"-30.0 ± {100 * half:.1f} points", "lower")
    assert rows[2][1] == "one reward against before RL"
    wide = [Seed(i, [RUN], stages(0.5, 0.5 + by, [0.1])) for i, by in enumerate((0.1, 0.3, -0.1))]
    assert headline_pages.decision_table(CLAIM, wide)[1][0][3] == "not shown"
    assert rows[3][2:] == ("", "not measured")
    assert plain(headline_pages.decision_table(CLAIM, SEEDS[:1])[1])[0][2:] == ("+8.0 points", "one seed")


def test_the_first_validation_that_reaches_the_end_of_the_first_arm_counts() -> None:
    column = Reach("steps", "policy/accuracy")
    assert [steps_to_reach(CLAIM, "two", column, one) for one in SEEDS] == [10.0, 20.0, None]
    assert [steps_to_reach(CLAIM, "one", column, one) for one in SEEDS] == [20.0] * 3
    assert [value_of(CLAIM, "three", column, one) for one in SEEDS] == [None] * 3


def test_a_flaw_that_no_answer_has_is_zero_and_what_was_not_measured_is_absent() -> None:
    flaw = Column("a flaw", "answers/flaw/copied")
    assert value_of(CLAIM, "one", flaw, SEEDS[0]) == 0.125
    assert value_of(CLAIM, "two", flaw, SEEDS[0]) == 0.0
    assert value_of(CLAIM, "four", flaw, SEEDS[0]) is None
    assert value_of(CLAIM, "one", Column("", "audit/unsound"), SEEDS[0]) is None


def test_a_band_is_over_the_steps_that_all_seeds_have() -> None:
    assert band("two", CLAIM.panels[0], SEEDS) == [
        (0, 0.2, pytest.approx((0.2 + 0.3 + 0.3) / 3), 0.3),
        (20, 0.4, pytest.approx((0.6 + 0.5 + 0.4) / 3), 0.6),
    ]


def plain(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row) for row in rows]


def test_a_table_has_a_row_for_the_start_and_each_arm() -> None:
    headings, cells = headline_pages.arms_table(CLAIM, SEEDS)
    rows = plain(cells)
    assert headings == ("arm", "right", "a flaw", "steps to it")
    assert rows[0] == ("before RL", "25.0 ± 0.0 %", "0.0 ± 0.0 %", "")
    assert rows[1] == ("one reward", f"50.0 ± {430.3 * 0.1 / math.sqrt(3):.1f} %", "12.5 ± 0.0 %", "20 ± 0")
    assert rows[2][3] == "10, 20; never in 1 of 3 seeds"


def test_many_measures_have_a_row_each() -> None:
    many = replace(CLAIM, columns=tuple(Column(str(i), "answers/accuracy") for i in range(6)))
    headings, rows = headline_pages.arms_table(many, SEEDS)
    assert headings == ("", "before RL", "one reward", "two rewards", "three")
    assert [row[0] for row in rows] == [str(i) for i in range(6)]
    assert plain(rows)[0][1] == "25.0 ± 0.0 %"


def test_a_mean_over_fewer_seeds_says_so() -> None:
    some = {name: stage for name, stage in SEEDS[1].stages.items() if not name.startswith("two")}
    seeds = [SEEDS[0], Seed(1, [RUN, {**RUN, "failed": "no judge"}], some)]
    assert plain(headline_pages.arms_table(CLAIM, seeds)[1])[2][1] == "58.0 % (1 of 2 seeds)"
    block = headline_pages.results_block("claim", CLAIM, seeds, "pictures")
    assert "Seed 1 did not finish: no judge" in block
    assert "Without results: seed 1 (two rewards), seed 2." in block
    assert "Without results" not in headline_pages.results_block("claim", CLAIM, SEEDS, "pictures")
    assert "3 runs" in block
    assert "claim --seeds 0 1" in block


def test_a_figure_is_well_formed_and_has_a_line_and_a_band_for_each_arm() -> None:
    root = ElementTree.fromstring(headline_pages.figure(CLAIM, SEEDS))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}polyline")) == len(root.findall(f"{name}polygon")) == 3
    assert {"one reward", "two rewards", "three", "accuracy"} <= {text.text for text in root.iter(f"{name}text")}
    for line in root.findall(f"{name}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
        assert all(0 <= x <= float(root.get("width", "0")) and 0 <= y <= 300 for x, y in points)
    assert headline_pages.figure(CLAIM, []) == ""


def test_what_is_written_is_read_again_and_what_is_known_stays(tmp_path: Path) -> None:
    everything = SEEDS[0].stages
    first = {name: stage for name, stage in everything.items() if not name.startswith("two")}
    second = {"start_answers": {"values": {"accuracy": 0.9}}, "two": everything["two"]}
    write(tmp_path, "claim", 0, {**RUN, "failed": "stopped"}, {"start_answers": first["start_answers"]})
    assert read(tmp_path, "claim")[0].failed == "stopped"
    write(tmp_path, "claim", 0, RUN, first)
    write(tmp_path, "claim_other", 1, RUN, SEEDS[1].stages)
    write(tmp_path, "claim", 0, {**RUN, "arms": ["two"]}, second)
    (found,) = read(tmp_path, "claim")
    assert (found.seed, found.failed, len(found.runs)) == (0, "", 2)
    assert found.stages == {**first, "two": everything["two"]}
    assert read(tmp_path, "claim_other")[0].stages == SEEDS[1].stages


# ---- the plan and the pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS)
def test_the_plan_names_stages_that_the_recipe_has(name: str) -> None:
    claim, table = CLAIMS[name], load_table(HEADLINES / f"{name}.toml")
    by_name = {stage.get("name", stage["type"]): stage for stage in table["stages"]}
    assert set(claim.evaluations) <= set(by_name)
    assert {arm for arm in by_name if f"{arm}_answers" in by_name} == set(claim.arms)
    for arm in claim.arms:
        assert by_name[arm]["type"] == "policy"
        assert by_name[arm]["same_prompts_as"] == "start_answers"
    assert {name for one in claim.decides for name in (one.arm, one.other)} <= set(claim.names)
    assert set(claim.curves or claim.arms) <= set(by_name)


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.arms])
def test_arms_differ_in_their_reward_alone(name: str) -> None:
    table = load_table(HEADLINES / f"{name}.toml")
    arms = [stage for stage in table["stages"] if stage.get("name") in CLAIMS[name].arms]
    others = [{key: value for key, value in arm.items() if key not in ("name", "model", "reward")} for arm in arms]
    assert all(other == others[0] for other in others)


def test_the_pages_follow_from_the_results() -> None:
    assert any(read(RESULTS, name) for name in CLAIMS), "no results are committed"
    seeds = {name: read(RESULTS, name) for name in CLAIMS}
    for page in headline_pages.PAGES:
        pictures = "pictures" if page.parent.name == "docs" else "../../docs/pictures"
        assert headline_pages.with_results(page.read_text(), seeds, pictures) == page.read_text(), page.name
    for name, claim in CLAIMS.items():
        picture = headline_pages.PICTURES / headline_pages.picture_of(name)
        assert (picture.read_text() if picture.exists() else "") == headline_pages.figure(claim, seeds[name])


def test_every_claim_has_a_place_on_the_results_page() -> None:
    text = (headline_pages.PICTURES.parent / "headlines.md").read_text()
    assert set(re.findall(r"<!-- results: ([a-z_]+) -->", text)) == set(CLAIMS)
    readmes = "".join(page.read_text() for page in HEADLINES.glob("*.md"))
    assert set(re.findall(r"<!-- results: ([a-z_]+) -->", readmes)) == set(CLAIMS)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_committed_results_are_small_and_come_from_the_recipe_as_it_is(file: Path) -> None:
    table = json.loads(file.read_text())
    assert file.stat().st_size < 100_000
    assert file.stem == f"{table['claim']}-{table['seed']}"
    assert all(run["changes"] == [] and run["version"] and run["device"] for run in table["runs"])
    here = Plan(Path("runs"))
    assert all(run["recipe"] == digest_of(table["claim"], table["seed"], run["arms"], here) for run in table["runs"])
    values = [value for stage in table["stages"].values() for value in stage["values"].values()]
    assert all(math.isfinite(value) for value in values)
