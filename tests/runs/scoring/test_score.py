"""`rewardsmith score`: in order, bounded, saved as it goes, resumed after a stop, readable by people and programs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import UserError
from rewardsmith.rewards.base import Halt
from rewardsmith.rewards.measure import measure
from rewardsmith.runs.lookup import find_reward
from rewardsmith.runs.score import _differences, _provenance
from rewardsmith.storage import ResumableJsonl
from rewardsmith.trainers.evaluate.scorer import run_in_order
from tests.command_line import Outcome, call
from tests.runs.scoring.groups import REWARDS, lines, run_folder, scored, some, write
from tests.test_imports import BLOCK

LIMIT = 120.0
SERVER = Path(__file__).parents[2] / "engines" / "small_server.py"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with a run, a file of groups, and a reward table `NAME.toml` for each reward of our own."""
    module = f"rewards_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{module}.py").write_text(REWARDS)
    for name in ("Length", "Picky", "Halts", "Ill"):
        (tmp_path / f"{name.lower()}.toml").write_text(f'type = "{module}:{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_folder(tmp_path / "run")
    write(tmp_path / "groups.jsonl", some(20))
    return tmp_path


def go(rollouts: str = "groups.jsonl", *more: str, reward: str = "length.toml") -> Outcome:
    return call("score", rollouts, "--reward", reward, *more)


def result(*arguments: str, **options: str) -> dict[str, Any]:
    ended = go(*arguments, "--json", **options)
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def refused(*arguments: str, **options: str) -> str:
    ended = go(*arguments, **options)
    assert (ended.status, ended.out) == (2, ""), ended
    return ended.err


def command(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", "score", *arguments],
        cwd=place, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


# ---- the loop ----------------------------------------------------------------------------------------------------


class Watched:
    """Takes its time, and notes how many items it has at a time."""

    def __init__(self, delays: list[float]) -> None:
        self.delays = delays
        self.running = self.max_running = 0

    async def __call__(self, item: int) -> int:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await asyncio.sleep(self.delays[item % len(self.delays)])
        self.running -= 1
        return 10 * item


def test_results_come_in_order_and_no_more_at_a_time_than_allowed() -> None:
    work, found = Watched([0.004, 0.0, 0.002, 0.0]), list[tuple[int, int]]()
    asyncio.run(run_in_order(range(30), work, lambda *both: found.append(both), concurrency=3))
    assert found == [(i, 10 * i) for i in range(30)]
    assert work.max_running == 3


def test_an_error_of_the_work_of_the_reader_and_of_pause_ends_it_at_once_as_it_is() -> None:
    async def halting(item: int) -> int:
        if item == 5:
            raise Halt("too many failures")
        await asyncio.sleep(30)
        return item

    def reading() -> Any:
        yield from range(2)
        raise UserError("line 3 is bad")

    def pause() -> None:
        raise KeyError("stop")

    kept: list[Any] = []
    for items, work, options, error in (
        (range(10), halting, {}, Halt),
        (reading(), Watched([0.0]), {}, UserError),
        (range(10), Watched([30.0]), {"pause": pause}, KeyError),
    ):
        loop = run_in_order(items, work, lambda *one: kept.append(one), concurrency=8, **options)
        with pytest.raises(error):
            asyncio.run(asyncio.wait_for(loop, timeout=10))
    assert len(kept) <= 2


# ---- what it prints --------------------------------------------------------------------------------------------------


def test_tables_and_the_comparison(place: Path) -> None:
    ended = go("run", "--compare")
    assert ended.status == 0
    count = sum(len(group.scores) for group in (*some(12), *some(2)))
    assert "│ reward    │" in ended.out
    assert f"0 of {count} rollouts that both scored" in ended.out
    assert "1.000, 1.000" in ended.out
    assert "14 groups;" in ended.out


def test_json_holds_all_of_it_and_failures_are_never_numbers(place: Path) -> None:
    picky = (place / "picky.toml").read_text().partition('"')[2].partition('"')[0]
    (place / "sum.toml").write_text(
        f'type = "sum"\nparts.long = {{ type = "{picky.replace("Picky", "Length")}" }}\n'
        f'parts.picky = {{ type = "{picky}", weight = 0.5, failure = {{ min_failures = 500 }} }}\n'
    )
    found = result("groups.jsonl", "--compare", "--out", "new.jsonl", reward="sum.toml")
    lengths = [len(r.text) for group in some(20) for r in group.group.rollouts]
    short = sum(n <= 2 for n in lengths)
    assert (found["groups"], found["resumed"], found["unscored"]) == (20, 0, short)
    assert found["reward"]["rollouts"] == found["compared"]["rollouts"] == len(lengths)
    assert found["parts"]["long"]["mean"] == pytest.approx(sum(lengths) / len(lengths))
    for one in (found["reward"], found["parts"]["picky"]):
        assert one["failed"] == {"timeout": pytest.approx(short / len(lengths))}
    assert found["compared"]["new_failed"] == {"timeout": short}
    assert (found["compared"]["changed"], found["compared"]["both"]) == (len(lengths) - short,) * 2
    assert set(found["reward"]["seconds_per_group"]) == {"p50", "p90", "p99", "max"}
    kinds = [s["failure"]["kind"] for row in lines(place / "new.jsonl") for s in row["scores"] if s["failure"]]
    assert kinds == ["timeout"] * short
    expected = measure(
        scored(f"p{i}", [r.text for r in g.group.rollouts], [float(len(r.text)) for r in g.group.rollouts])
        for i, g in enumerate(some(20))
    )[""]
    whole = result("groups.jsonl")["reward"]
    assert (whole["mean"], whole["spread"], whole["flat"]) == (expected.mean, expected.spread, expected.flat)


def test_texts_of_rollouts_cannot_control_the_terminal(place: Path) -> None:
    texts = ["\x1b[2Jlong [red]and[/red] evil\u202e\n" + "x" * 500, "short"]
    write(place / "evil.jsonl", [scored("p[bold]\x1b", texts, [0.0, 1.0])])
    out = go("evil.jsonl", "--compare", "--max-changes", "1").out
    assert "the 1 largest of 2 changes of sign" in out
    row = next(line for line in out.splitlines() if "p[bold]" in line)
    assert "\\x1b[2Jlong [red]and[/red] evil\\u202e\\nx" in row
    assert f"0.000 → {len(texts[0])}.000" in row
    assert f"-0.5 → +{(len(texts[0]) - 5) / 2:.3g}" in row
    assert not {"\x1b", "\u202e"} & set(out)
    assert max(map(len, out.splitlines())) < 210


def test_a_pipe_gets_whole_numbers_and_the_cause_of_failures(place: Path) -> None:
    write(place / "rows.jsonl", [{"id": str(i), "prompt": "?", "responses": ["1", "2"]} for i in range(3)])  # no answer
    (place / "clip.toml").write_text('type = "clip"\nlow = 0.0\nreward = { type = "rule", rule = "exact" }\n')
    ended = go("rows.jsonl", reward="clip.toml")
    assert ended.status == 1  # nothing has a score
    assert ended.out.endswith("\n6 of 6 rollouts without a score\n")
    assert "invalid 100%" in ended.out
    assert "…" not in ended.out
    assert "raw invalid, the first: the prompt '0' has no answer to compare with" in ended.out


def test_a_share_without_a_score_may_be_too_much(place: Path) -> None:
    write(place / "half.jsonl", [scored("p", ["long enough", "s"], [1.0, 1.0])])
    for allowed, status in ((("--fail-above", "0.49"), 1), (("--fail-above", "0.5"), 0), ((), 0)):
        ended = go("half.jsonl", *allowed, reward="picky.toml")
        assert (ended.status, ended.out.endswith("\n1 of 2 rollouts without a score\n")) == (status, True)


def test_a_mistake_ends_with_status_2_and_a_remedy(place: Path) -> None:
    length = ("--reward", "length.toml")
    for arguments, message in (
        (("nowhere", *length), "nowhere"),
        (("run", "--reward", "lenght.toml"), "length.toml"),
        (("run", *length, "scael=2"), "scale"),
        (("run", *length, "--kind", "training"), "train"),
        (("run", *length, "--step", "5-3"), "--step '5-3'"),
        (("run", *length, "--fresh"), "--out"),
        (("run", *length, "--stage", "polcy"), "policy"),
        (("run", "--reward", "ill.toml"), "no key was given"),
        (("run",), "--reward"),
    ):
        ended = call("score", *arguments)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err


def test_the_columns_of_a_table_are_flags(place: Path) -> None:
    write(place / "t.jsonl", [{"extra_info": {"question": "1+1?", "gold": "2"}, "out": {"texts": ["2", "3"]}}])
    (place / "exact.toml").write_text('type = "rule"\nrule = "exact"\n')
    columns = (
        *("--prompt-column", "extra_info.question", "--response-column", "out.texts"),
        *("--answer-column", "extra_info.gold"),
    )
    assert result("t.jsonl", *columns, reward="exact.toml")["reward"]["mean"] == 0.5
    assert "prompt_column" in refused("t.jsonl", *columns[2:], reward="exact.toml")
    write(place / "plain.jsonl", [group.group for group in some(2)])
    assert "--compare needs one" in refused("plain.jsonl", "--compare")


def test_a_reward_table_and_a_served_judge_need_no_torch(place: Path) -> None:
    code = BLOCK.format(blocked={"torch", "transformers", "peft"}) + (
        "from rewardsmith.cli import main\n"
        "sys.argv = ['rewardsmith', 'score', 'groups.jsonl', '--reward', 'length.toml', '--compare']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 of" in done.stdout


@pytest.mark.parametrize(("reply", "status", "left"), [("Score: 7", 0, []), ("", 2, ["judge.log"])])
def test_the_log_of_a_server_stays_only_if_something_went_wrong(
    tmp_path: Path, reply: str, status: int, left: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "?", "responses": ["1", "2"]}) + "\n")
    words = [sys.executable, str(SERVER), "--model", "m", "--host", "{host}", "--port", "{port}"]
    words += ["--says", reply] if reply else ["--fail", "broken"]
    (tmp_path / "reward.toml").write_text(
        f'type = "judge"\nmodel = "judge"\n[models.judge]\ntype = "managed"\nmodel = "m"\ncommand = {json.dumps(words)}'
    )
    (tmp_path / "temporary").mkdir()
    done = command(
        tmp_path, "rows.jsonl", "--reward", "reward.toml",
        TMPDIR=str(tmp_path / "temporary"), REWARDSMITH_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    folders = list((tmp_path / "temporary").iterdir())
    assert [file.name for folder in folders for file in folder.iterdir()] == left


# ---- the results file ----------------------------------------------------------------------------------------------


def test_the_same_reward_on_its_own_output_changes_nothing(place: Path) -> None:
    first = result("run", "--out", "new.jsonl", "scale=0.1")
    again = result("new.jsonl", "--out", "again.jsonl", "--compare", "scale=0.1")
    assert (again["compared"]["changed"], again["compared"]["sign_changes"]) == (0, 0)
    assert untimed(again) == untimed(first)
    assert (place / "new.jsonl").read_bytes() == (place / "again.jsonl").read_bytes()
    old = [*lines(place / "run" / "rollouts" / "greedy.jsonl"), *lines(place / "run" / "rollouts" / "policy.jsonl")]
    for before, after in zip(old, lines(place / "new.jsonl"), strict=True):
        assert after["scored"]["group"] == before["scored"]["group"] | {"policy_version": 0}
        assert [after[k] for k in ("step", "kind", "dropped")] == [before[k] for k in ("step", "kind", "dropped")]
        assert after["advantages"] == [None] * len(after["scored"]["scores"])


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found["reward"].items() if name != "seconds_per_group"}


@pytest.fixture
def calls(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which the reward notes the groups that it scores."""
    monkeypatch.setenv("CALLS", str(place / "calls.txt"))
    return place / "calls.txt"


@pytest.mark.parametrize("cut", [701, -1])
def test_it_resumes_after_the_last_complete_line(place: Path, calls: Path, cut: int) -> None:
    whole = result("groups.jsonl", "--out", "whole.jsonl", "--compare")
    expected = (place / "whole.jsonl").read_bytes()
    result("groups.jsonl", "--out", "new.jsonl", "--compare")
    os.truncate(place / "new.jsonl", cut % len(expected))
    complete = expected[: cut % len(expected)].count(b"\n")
    calls.write_text("")
    found = result("groups.jsonl", "--out", "new.jsonl", "--compare")
    assert (place / "new.jsonl").read_bytes() == expected
    assert sorted(calls.read_text().split()) == sorted(f"p{i}" for i in range(complete, 20))
    assert (found["resumed"], found["groups"]) == (complete, 20)
    assert (untimed(found), found["compared"]) == (untimed(whole), whole["compared"])
    calls.write_text("")
    assert result("groups.jsonl", "--out", "new.jsonl")["resumed"] == 20
    assert calls.read_text() == ""  # a finished file is shown without scoring anything


def test_a_limit_may_grow_and_what_comes_after_the_saved_groups_may_change(place: Path) -> None:
    result("groups.jsonl", "--out", "new.jsonl", "--limit", "9")
    groups = some(20)
    write(place / "groups.jsonl", [*groups[:9], groups[3]])
    assert result("groups.jsonl", "--out", "new.jsonl")["resumed"] == 9
    for changed in (["--limit", "7"], []):
        if not changed:
            write(place / "groups.jsonl", groups[1:])
        assert "have changed: add --fresh" in refused("groups.jsonl", "--out", "new.jsonl", *changed)


def test_another_reward_is_refused_by_name(place: Path) -> None:
    result("groups.jsonl", "--out", "new.jsonl")
    before = (place / "new.jsonl").read_bytes()
    message = refused("groups.jsonl", "--out", "new.jsonl", "scale=2.0")
    assert "reward.scale: 1.0 -> 2.0" in message
    assert "--fresh" in message
    assert "reward.type:" in refused("groups.jsonl", "--out", "new.jsonl", reward="picky.toml")
    assert (place / "new.jsonl").read_bytes() == before
    # When to give up is no part of what a score is.
    budget = ("failure.share=0.9", "failure.wait=1.0")
    assert result("groups.jsonl", "--out", "new.jsonl", *budget)["resumed"] == 20
    assert result("groups.jsonl", "--out", "new.jsonl", "--fresh", "scale=2.0")["resumed"] == 0
    assert lines(place / "new.jsonl")[1]["scores"][0]["value"] == 6.0
    (module,) = place.glob("rewards_*.py")
    module.write_text(f"{module.read_text()}\n# a small change\n")
    assert f"the file of {module.stem}:Length has changed" in refused("groups.jsonl", "--out", "new.jsonl", "scale=2.0")


def test_more_time_for_a_judge_does_not_make_another_reward(tmp_path: Path) -> None:
    def made_by(judge: str = "", model: str = "") -> dict[str, Any]:
        served = f'[models.far]\ntype = "server"\nurls = ["http://127.0.0.1:9/v1"]\n{model}\n'
        (tmp_path / "reward.toml").write_text(f'type = "judge"\nmodel = "far"\n{judge}\n{served}')
        found = find_reward(str(tmp_path / "reward.toml"))
        return _provenance(found.reward, found.models)

    before = made_by()
    for budget in (made_by("deadline = 999.0"), made_by(model="deadline = 999.0\ntimeout = 9.0")):
        assert list(_differences(before, budget)) == []
    assert len(list(_differences(before, made_by("votes = 3")))) == 1
    assert len(list(_differences(before, made_by(model='version = "2"')))) == 1


def test_files_that_must_not_be_written_to(place: Path) -> None:
    before = (place / "groups.jsonl").read_bytes()
    (place / "notes.txt").write_text("mine")
    for arguments, word in (
        (("groups.jsonl", "--out", "groups.jsonl", "--fresh"), "another folder"),
        (("run", "--out", "run/rollouts/new.jsonl"), "another folder"),
        (("groups.jsonl", "--out", "notes.txt"), "did not write it"),
        (("groups.jsonl", "--out", "notes.txt", "--fresh"), "did not write it"),
        (("groups.jsonl", "--out", "run"), ".jsonl file"),
        (("groups.jsonl", "--out", "new.parquet"), ".jsonl file"),
        (("groups.jsonl", "--out", "notes.txt/new.jsonl"), "cannot write to"),
    ):
        assert word in refused(*arguments), arguments
    assert (place / "groups.jsonl").read_bytes() == before
    assert (place / "notes.txt").read_text() == "mine"
    with ResumableJsonl(place / "new.jsonl").open():
        assert "another process" in refused("groups.jsonl", "--out", "new.jsonl")


def test_a_halt_reports_the_causes_and_what_is_saved(place: Path) -> None:
    message = refused("groups.jsonl", "--out", "new.jsonl", "--concurrency", "1", reward="halts.toml")
    assert "the judge is gone" in message
    assert "after 2 groups" in message
    assert len(lines(place / "new.jsonl")) == 2
    write(place / "rows.jsonl", [{"id": str(i), "prompt": "?", "responses": ["1"] * 8} for i in range(60)])
    (place / "exact.toml").write_text('type = "rule"\nrule = "exact"\n')
    message = refused("rows.jsonl", "--concurrency", "1", reward="exact.toml")
    for word in ("failure.share", "reward invalid, the first: the prompt", "--out FILE"):
        assert word in " ".join(message.split())


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_a_command_that_was_stopped_resumes_and_ends_with_the_same_file(place: Path, blow: signal.Signals) -> None:
    arguments = ["groups.jsonl", "--reward", "length.toml", "--concurrency", "3", "--json", "--out"]
    whole = command(place, *arguments, "whole.jsonl")
    assert whole.returncode == 0, whole.stderr
    for strike in (6, 5):  # it is struck twice, and each time resumes
        stopped = command(place, *arguments, "new.jsonl", STRIKE_AT=str(strike), STRIKE=str(int(blow)))
        assert stopped.returncode == (-9 if blow is signal.SIGKILL else 130), stopped.stderr
        assert "Traceback" not in stopped.stderr
    before = (place / "new.jsonl").read_bytes().count(b"\n")
    assert 0 < before < 20
    done = command(place, *arguments, "new.jsonl", CALLS=str(place / "calls.txt"))
    assert done.returncode == 0, done.stderr
    assert (place / "new.jsonl").read_bytes() == (place / "whole.jsonl").read_bytes()
    assert len((place / "calls.txt").read_text().split()) == 20 - before
    assert untimed(json.loads(done.stdout)) == untimed(json.loads(whole.stdout))
