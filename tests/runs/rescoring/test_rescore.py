"""Scoring stored rollouts: in order, bounded, kept as they come, and going on where it was stopped."""

import asyncio
import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rewardsmith import RolloutGroup, Score, UserError
from rewardsmith.config import Chosen
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.base import Halt
from rewardsmith.rewards.measure import measure
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.rescoring.choice import find_reward
from rewardsmith.runs.rescoring.compare import Comparison
from rewardsmith.runs.rescoring.kept import KeptScores, Maker
from rewardsmith.runs.rescoring.rescore import HELD, Rescored, rescore, score_in_order
from rewardsmith.runs.rescoring.stored import Stored, StoredRollouts, Wanted
from tests.runs.rescoring.groups import REWARDS, lines, record, run_folder, scored, some, write


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with a file of groups, and a module of rewards that can be imported as `rewards_…`."""
    module = f"rewards_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{module}.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tests.runs.rescoring.test_rescore.MODULE", module)
    write(tmp_path / "groups.jsonl", some(20))
    return tmp_path


MODULE = ""


def chosen(name: str = "Length", **settings: Any) -> Chosen:
    return REWARD.choose({"type": f"{MODULE}:{name}", **settings})


def go(place: Path, reward: Chosen | None = None, *, out: str = "", compare: bool = False, **options: Any) -> Rescored:
    rollouts = StoredRollouts(str(place / options.pop("path", "groups.jsonl")), options.pop("wanted", None))
    reward = reward or chosen()
    fresh = options.pop("fresh", False)
    kept = KeptScores(place / out, Maker.of(reward, {}), rollouts.files, fresh=fresh) if out else None
    progress = Progress(Console(file=options.pop("said", StringIO()), width=200))
    return rescore(
        rollouts, reward, progress=progress, kept=kept, comparison=Comparison() if compare else None, **options
    )


def refused(place: Path, *args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        go(place, *args, **options)
    return str(caught.value)


# ---- the loop ----------------------------------------------------------------------------------------------------


class Watched:
    """Takes its time, and notes how many groups it has at once."""

    def __init__(self, delays: list[float]) -> None:
        self.delays = delays
        self.now = self.most = self.asked = 0

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        self.now += 1
        self.asked += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.delays[int(group.prompt.id[1:]) % len(self.delays)])
        self.now -= 1
        return tuple(Score(float(group.prompt.id[1:])) for _ in group.rollouts)


def stored(count: int) -> list[Stored]:
    return [Stored(group.group, None, None, "here") for group in some(count)]


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_results_come_in_order_and_no_more_at_once_than_allowed(at_once: int) -> None:
    reward = Watched([0.004, 0.0, 0.002, 0.0])
    seen: list[tuple[str, float | None]] = []

    def keep(item: Stored, result: Any) -> None:
        seen.append((item.group.prompt.id, result.scores[0].value))

    asyncio.run(score_in_order(reward, stored(30), keep, at_once=at_once))
    assert seen == [(f"p{i}", float(i)) for i in range(30)]
    assert reward.most == at_once if at_once < 10 else reward.most > 3


def test_one_slow_group_does_not_let_the_others_pile_up_without_bound() -> None:
    reward = Watched([0.3, *[0.0] * 99])  # the first holds up all that come after it
    ahead = 0
    taken = kept = 0

    def reading() -> Any:
        nonlocal taken
        for item in stored(100):
            taken += 1
            yield item

    def keep(*_: object) -> None:
        nonlocal kept, ahead
        ahead = max(ahead, taken - kept)
        kept += 1

    asyncio.run(score_in_order(reward, reading(), keep, at_once=4))
    assert kept == 100
    assert ahead == HELD * 4 + 1


def test_a_halt_ends_it_at_once_though_an_earlier_group_is_not_done() -> None:
    class Halting(Watched):
        async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
            if group.prompt.id == "p5":
                raise Halt("too many failures")
            return await super().score(group)

    kept: list[Stored] = []
    with pytest.raises(Halt, match="too many failures"):
        asyncio.run(
            asyncio.wait_for(
                score_in_order(Halting([30.0]), stored(10), lambda item, _: kept.append(item), at_once=8), timeout=10
            )
        )
    assert kept == []


def test_what_reading_raises_comes_out_as_it_is() -> None:
    def reading() -> Any:
        yield from stored(2)
        raise UserError("line 3 is bad")

    with pytest.raises(UserError, match="line 3 is bad"):
        asyncio.run(score_in_order(Watched([0.0]), reading(), lambda *_: None, at_once=2))


# ---- the whole ---------------------------------------------------------------------------------------------------


def test_measures_are_those_of_the_groups(place: Path) -> None:
    found = go(place, chosen(scale=2.0), at_once=4)
    texts = [[len(r.text) for r in group.group.rollouts] for group in some(20)]
    expected = measure(scored(f"p{i}", ["x"] * len(t), [2.0 * n for n in t]) for i, t in enumerate(texts))
    assert found.measured == expected
    assert (found.groups, found.resumed, found.compared) == (20, 0, None)
    assert list(found.seconds[""]) == ["p50", "p90", "p99", "max"]
    assert found.rollouts_per_second is not None
    assert found.rollouts_per_second > 0


def test_failures_are_failures_in_the_file_and_in_the_measures(place: Path) -> None:
    found = go(place, chosen("Picky", failure={"least": 500}), out="new.jsonl", compare=True)
    short = sum(len(r.text) <= 2 for group in some(20) for r in group.group.rollouts)
    count = sum(len(group.scores) for group in some(20))
    assert found.measured[""].failed == {"timeout": short / count}
    assert found.compared is not None
    assert (found.compared.changed, found.compared.both) == (0, count - short)
    assert dict(found.compared.new_failed) == {"timeout": short}
    kinds = [s["failure"]["kind"] for row in lines(place / "new.jsonl") for s in row["scores"] if s["failure"]]
    assert kinds == ["timeout"] * short


def test_the_same_reward_on_its_own_output_changes_nothing(place: Path) -> None:
    run = run_folder(place / "run")
    first = go(place, chosen(scale=0.1), path="run", out="new.jsonl")
    again = go(place, chosen(scale=0.1), path="new.jsonl", out="again.jsonl", compare=True)
    assert again.compared is not None
    assert (again.compared.changed, again.compared.turned) == (0, 0)
    assert again.measured == first.measured
    assert (place / "new.jsonl").read_bytes() == (place / "again.jsonl").read_bytes()
    old = [*lines(run / "rollouts" / "greedy.jsonl"), *lines(run / "rollouts" / "policy.jsonl")]
    for before, after in zip(old, lines(place / "new.jsonl"), strict=True):
        assert after["scored"]["group"] == before["scored"]["group"] | {"policy_version": 0}
        assert [after[k] for k in ("step", "kind", "dropped")] == [before[k] for k in ("step", "kind", "dropped")]
        assert after["advantages"] == [None] * len(after["scored"]["scores"])


def test_comparing_needs_stored_rewards(place: Path) -> None:
    write(place / "plain.jsonl", [group.group for group in some(2)])
    assert "line 1: no reward is stored there, and --compare needs one" in refused(
        place, path="plain.jsonl", compare=True, out="new.jsonl"
    )


def test_a_reward_that_cannot_work_is_found_before_anything_is_scored(place: Path) -> None:
    assert "no key was given" in refused(place, chosen("Ill"), out="new.jsonl")
    assert (place / "new.jsonl").read_bytes() == b""


def test_a_halt_says_what_is_kept(place: Path) -> None:
    message = refused(place, chosen("Halts"), out="new.jsonl", at_once=1)
    assert message.startswith("the judge is gone\nThat was after 2 groups. The same command goes on")
    assert len(lines(place / "new.jsonl")) == 2


def test_a_halt_without_a_file_says_how_to_keep_something(place: Path) -> None:
    message = refused(place, chosen("Halts"), at_once=1)
    assert message.endswith("Nothing was kept: with --out FILE the same command goes on")


def test_lines_that_a_run_left_unfinished_are_said(place: Path) -> None:
    file = run_folder(place / "run", 4) / "rollouts" / "policy.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    said = StringIO()
    assert go(place, path="run", said=said).groups == 5
    assert "policy.jsonl, line 4 is cut off" in said.getvalue()


# ---- going on ----------------------------------------------------------------------------------------------------


def asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the reward note which groups it is asked about."""
    monkeypatch.setenv("CALLS", str(place / "calls.txt"))
    (place / "calls.txt").write_text("")
    return place / "calls.txt"


@pytest.mark.parametrize("cut", [0, 1, 100, 701, -1, -2, -300])
def test_it_goes_on_after_the_last_complete_line(place: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    whole = go(place, out="whole.jsonl", compare=True)
    expected = (place / "whole.jsonl").read_bytes()
    go(place, out="new.jsonl", compare=True)
    os.truncate(place / "new.jsonl", cut % len(expected))
    complete = expected[: cut % len(expected)].count(b"\n")
    calls = asked(place, monkeypatch)
    found = go(place, out="new.jsonl", compare=True)
    assert (place / "new.jsonl").read_bytes() == expected
    assert sorted(calls.read_text().split()) == sorted(f"p{i}" for i in range(complete, 20))
    assert (found.resumed, found.groups) == (complete, 20)
    assert found.measured == whole.measured
    assert found.compared == whole.compared


def test_a_finished_file_is_shown_without_asking_anyone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = go(place, out="new.jsonl")
    calls = asked(place, monkeypatch)
    again = go(place, out="new.jsonl")
    assert calls.read_text() == ""
    assert (again.resumed, again.rollouts_per_second, again.seconds) == (20, None, {})
    assert again.measured == first.measured


def test_a_limit_may_grow(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(place, out="new.jsonl", wanted=Wanted(limit=7))
    calls = asked(place, monkeypatch)
    assert go(place, out="new.jsonl").resumed == 7
    assert len(calls.read_text().split()) == 13
    assert "fewer groups to score than scores: add --fresh" in refused(place, out="new.jsonl", wanted=Wanted(limit=7))


def test_another_reward_is_refused_by_name(place: Path) -> None:
    go(place, out="new.jsonl")
    before = (place / "new.jsonl").read_bytes()
    message = refused(place, chosen(scale=2.0), out="new.jsonl")
    assert "were made by another reward:\n  reward.scale: 1.0 -> 2.0\nTo go on, add --fresh" in message
    assert (place / "new.jsonl").read_bytes() == before
    assert "reward.type:" in refused(place, chosen("Picky"), out="new.jsonl")
    # When to give up is no part of what a score is.
    assert go(place, chosen(failure={"share": 0.9, "wait": 1.0}), out="new.jsonl").resumed == 20
    assert go(place, chosen(scale=2.0), out="new.jsonl", fresh=True).resumed == 0
    assert lines(place / "new.jsonl")[1]["scores"][0]["value"] == 6.0
    assert go(place, chosen(scale=2.0), out="new.jsonl").resumed == 20


def test_more_time_for_a_judge_does_not_make_another_reward(tmp_path: Path) -> None:
    def maker(asking: str = "", model: str = "") -> Maker:
        judge = f'[models.far]\ntype = "server"\nurls = ["http://127.0.0.1:9/v1"]\n{model}\n'
        (tmp_path / "reward.toml").write_text(f'type = "judge"\nmodel = "far"\nrequest = {{ {asking} }}\n{judge}')
        found = find_reward(str(tmp_path / "reward.toml"))
        return Maker.of(found.reward, found.asked)

    before = maker()
    for patience in (maker("deadline = 999.0"), maker(model="deadline = 999.0\nbatch = 3\nfirst_byte = 9.0")):
        assert list(patience.differs(before)) == []
    assert len(list(maker("tries = 7").differs(before))) == 1
    assert len(list(maker(model='version = "2"').differs(before))) == 1


def test_code_that_changed_under_its_name_is_another_reward(place: Path) -> None:
    go(place, out="new.jsonl")
    with (place / f"{MODULE}.py").open("a") as file:
        file.write("\n# a small change\n")
    assert f"the file of {MODULE}:Length has changed" in refused(place, out="new.jsonl")


def test_other_rollouts_are_refused(place: Path) -> None:
    go(place, out="new.jsonl", wanted=Wanted(limit=9))
    groups = some(20)
    write(place / "groups.jsonl", groups[1:])
    message = refused(place, out="new.jsonl")
    assert "new.jsonl, line 1 is about other rollouts than" in message
    assert "groups.jsonl, line 1 (prompt p0 and p1)" in message
    # What comes after the kept ones may change: a run may have gone on, a bad line may have been mended.
    write(place / "groups.jsonl", [*groups[:9], groups[3]])
    assert go(place, out="new.jsonl").groups == 10


def test_files_that_must_not_be_written_to(place: Path) -> None:
    before = (place / "groups.jsonl").read_bytes()
    assert "is one of the files that are read" in refused(place, out="groups.jsonl", fresh=True)
    run_folder(place / "run")
    assert "one of the run's own files" in refused(place, path="run", out="run/rollouts/new.jsonl")
    (place / "notes.txt").write_text("mine")
    for fresh in (False, True):
        assert "this command did not write it" in refused(place, out="notes.txt", fresh=fresh)
    assert "is a folder" in refused(place, out="run")
    assert "name a .jsonl file" in refused(place, out="new.parquet")
    assert "cannot write to" in refused(place, out="notes.txt/new.jsonl")
    assert (place / "groups.jsonl").read_bytes() == before
    assert (place / "notes.txt").read_text() == "mine"


def test_damaged_notes_and_lines_are_said(place: Path) -> None:
    go(place, out="new.jsonl")
    note = place / "new.jsonl.made-by.json"
    text = note.read_text()
    note.write_text("{")
    assert "new.jsonl.made-by.json" in refused(place, out="new.jsonl")
    note.write_text(text)
    rows = (place / "new.jsonl").read_text().splitlines()
    (place / "new.jsonl").write_text("\n".join([rows[0], '{"x": 1}', *rows[2:]]) + "\n")
    assert "new.jsonl, line 2: ScoredGroup has an unknown field 'x'" in refused(place, out="new.jsonl")


def test_two_processes_cannot_write_to_one_file(place: Path) -> None:
    kept = KeptScores(place / "new.jsonl", Maker.of(chosen(), {}), [])
    with kept.open():
        assert "another process is writing to" in refused(place, out="new.jsonl")


def test_the_note_says_what_made_the_scores(place: Path) -> None:
    go(place, chosen(scale=0.5), out="deep/new.jsonl")
    note = json.loads((place / "deep" / "new.jsonl.made-by.json").read_text())
    assert note["reward"]["scale"] == 0.5
    assert list(note["code"]) == [f"{MODULE}:Length"]


def test_what_was_written_before_an_error_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, count = KeptScores.add, 0

    def failing(self: KeptScores, row: Any) -> None:
        nonlocal count
        count += 1
        if count > 5:
            raise UserError("the disk is full")
        add(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(KeptScores, "add", failing)
        assert refused(place, out="new.jsonl") == "the disk is full"
    assert len(lines(place / "new.jsonl")) == 5
    assert go(place, out="new.jsonl").resumed == 5


def test_records_of_a_run_that_are_not_of_one_form(place: Path) -> None:
    write(place / "mixed.jsonl", [record(some(1)[0]), some(2)[1]])
    assert "line 2: this is a scored group, but the first line is a group of a run" in refused(
        place, path="mixed.jsonl"
    )
