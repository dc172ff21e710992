"""The server of the viewer: what it answers, to whom, and what it refuses."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, CookieJar, web

from rewardsmith import Score
from rewardsmith.errors import UserError
from rewardsmith.viewer.report import web_file
from rewardsmith.viewer.run_list import RunList
from rewardsmith.viewer.view_page import PAGE_FILES
from rewardsmith.viewer.view_server import is_loopback, make_app
from tests.runs.fake_run import line, write_fake_run, write_lines
from tests.viewer.judged_run import HOSTILE, RECIPE, write_judged_run

Get = Callable[..., Awaitable[tuple[int, Any, Any]]]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))


def served(paths: list[Path], use: Callable[[Get], Awaitable[None]], **options: Any) -> None:
    """Serve runs on a free port, and call `use` with a function that sends a request."""

    async def go() -> None:
        runner = web.AppRunner(make_app(RunList(paths), **options))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        try:
            async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:

                async def get(path: str, *, method: str = "GET", **more: Any) -> tuple[int, Any, Any]:
                    async with session.request(method, f"http://127.0.0.1:{port}{path}", **more) as response:
                        body = await response.text()
                        as_json = response.content_type == "application/json"
                        return response.status, response.headers, json.loads(body) if as_json else body

                await use(get)
        finally:
            await runner.cleanup()

    asyncio.run(go())


async def until_indexed(get: Get, run: str) -> dict[str, Any]:
    for _ in range(200):
        _, _, found = await get("/api/stages", params={"run": run})
        if found["indexed"] >= 1 and found["stages"]:
            return dict(found)
        await asyncio.sleep(0.05)
    raise AssertionError("the rollouts were not indexed in 10 s")


def test_a_run_is_answered_from_its_list_to_a_rollout(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "runs" / "first", steps=8, prompts=2)
    lines = [json.loads(text) for text in (folder / "rollouts" / "policy.jsonl").read_text().splitlines()]

    async def use(get: Get) -> None:
        _, _, found = await get("/api/runs")
        (entry,) = found["runs"]
        assert (entry["name"], entry["state"]) == ("first", "finished")
        assert entry["results"][0] | {"before": 0, "after": 0} == {
            "stage": "policy", "name": "mean@4", "share": False, "before": 0, "after": 0,
        }  # fmt: skip
        _, _, overview = await get("/api/overview", params={"run": "first"})
        assert [stage["name"] for stage in overview["stages"]] == ["sft", "policy", "evaluate"]
        assert overview["settings"]["stages.0.loss.high"] == "0.28"
        stages = await until_indexed(get, "first")
        assert stages["stages"][0]["groups"] == len(lines)
        query = {"run": "first", "stage": "policy", "sort": "reward", "order": "down", "limit": "3"}
        _, _, page = await get("/api/rows", params=query)
        assert (page["total"], len(page["rows"])) == (len(lines), 3)
        place = {"run": "first", "stage": "policy", "line": "5"}
        _, _, group = await get("/api/group", params=place)
        assert [one["text"] for one in group["rollouts"]] == [
            rollout["text"] for rollout in lines[5]["scored"]["group"]["rollouts"]
        ]
        _, headers, raw = await get("/api/raw", params=place)
        assert raw == lines[5]
        assert headers["Content-Disposition"].startswith("attachment")
        _, _, cases = await get("/api/validations", params={"run": "first"})
        assert [end["step"] for end in cases["validations"][0]["ends"]] == [0, 8]

    served([tmp_path / "runs"], use)


def test_a_run_that_goes_on_changes_its_version(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run", steps=8, prompts=2)

    async def use(get: Get) -> None:
        await until_indexed(get, "run")
        _, _, before = await get("/api/version", params={"run": "run"})
        assert (await get("/api/version", params={"run": "run"}))[2] == before
        with (folder / "rollouts" / "policy.jsonl").open("a") as file:
            file.write(json.dumps(line("new", Score(1.0), step=99)) + "\n")
        _, _, after = await get("/api/version", params={"run": "run"})
        assert after["runs"]["run"]["version"] != before["runs"]["run"]["version"]
        for _ in range(100):
            query = {"run": "run", "stage": "policy", "step_min": "99"}
            _, _, page = await get("/api/rows", params=query)
            if page["rows"]:
                break
            await asyncio.sleep(0.05)
        assert [row["step"] for row in page["rows"]] == [99]

    served([folder], use)


def test_a_run_that_cannot_be_indexed_stops_no_other(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("rewardsmith.viewer.view_server.RETRY_SECONDS", 0.0)
    (write_fake_run(tmp_path / "a", steps=8, prompts=1) / "rollouts" / "folder.jsonl").mkdir()
    write_fake_run(tmp_path / "b", steps=8, prompts=1)
    update, errors = RunList.update_indexes, iter([RuntimeError("fails once")])

    def fail_once(self: RunList) -> bool:
        for error in errors:
            raise error
        return update(self)

    monkeypatch.setattr(RunList, "update_indexes", fail_once)

    async def use(get: Get) -> None:
        await get("/api/stages", params={"run": "a"})
        await until_indexed(get, "b")

    served([tmp_path], use)
    logged = capsys.readouterr().err
    assert "fails once" in logged
    assert "the rollouts of a could not be indexed: IsADirectoryError" in logged


# ---- what judges were shown ------------------------------------------------------------------------------------------


def test_the_prompts_of_a_judge_are_rendered_again(tmp_path: Path) -> None:
    folder = write_judged_run(tmp_path / "judged")

    async def use(get: Get) -> None:
        await until_indexed(get, "judged")
        place = {"run": "judged", "stage": "policy", "line": "0"}
        status, _, found = await get("/api/prompts", params=place)
        assert status == 200
        prompts = found["prompts"]
        assert [(one["part"], one["model"], one["rollouts"]) for one in prompts] == [
            ("judge", "judge", [i]) for i in range(3)
        ]
        text = prompts[0]["messages"][-1]["text"]
        assert "1 + 1 = 2" in text
        assert "shows its steps" in text
        assert "<script>" in prompts[1]["messages"][-1]["text"]
        _, _, group = await get("/api/group", params=place)
        assert [one["parts"][1]["feedback"]["text"][:9] for one in group["rollouts"]] == [
            "All steps",
            "It quotes",
            "I like it",
        ]

    served([folder], use)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('type = "rubric"', 'type = "my_lost_plugin:Judge"', "my_lost_plugin"),
        (RECIPE, "title = ", "recipe.toml"),
        ('type = "policy"', 'type = "policy"\nname = "other"', "no stage 'policy'"),
    ],
)
def test_a_reward_that_cannot_be_built_is_a_message(tmp_path: Path, before: str, after: str, why: str) -> None:
    folder = write_judged_run(tmp_path / "judged")
    (folder / "recipe.toml").write_text(RECIPE.replace(before, after))

    async def use(get: Get) -> None:
        await until_indexed(get, "judged")
        status, _, found = await get("/api/prompts", params={"run": "judged", "stage": "policy", "line": "0"})
        assert status == 400
        assert "cannot be built" in found["error"]
        assert why in found["error"]

    served([folder], use)


# ---- who is answered, and what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "..%2fsecret", "/etc", "run/../../secret", "", "run\0", "RUN", "." * 5])
def test_only_known_runs_and_stages_are_read(tmp_path: Path, name: str) -> None:
    folder = write_fake_run(tmp_path / "runs" / "run", steps=8, prompts=2)
    secret = write_fake_run(tmp_path / "secret", steps=8, prompts=2)
    (secret / "rollouts" / "policy.jsonl").rename(tmp_path / "policy.jsonl")

    async def use(get: Get) -> None:
        for path in ("overview", "stages", "rows", "group", "raw", "prompts", "validations"):
            status, _, found = await get(f"/api/{path}", params={"run": name, "stage": "policy", "line": "0"})
            assert (status, list(found)) == (400, ["error"])
        await until_indexed(get, "run")
        for stage in (name, "../../policy", "../policy", "policy.jsonl"):
            status, _, _ = await get("/api/raw", params={"run": "run", "stage": stage, "line": "0"})
            assert status == 400
            _, _, page = await get("/api/rows", params={"run": "run", "stage": stage, "text": "a"})
            assert page["rows"] == []

    served([folder.parent], use)


@pytest.mark.parametrize(
    "path",
    ["/web/../report.py", "/web/%2e%2e/report.py", "/web/report.html", "/web//etc/passwd", "/report.py", "/api/x"],
)
def test_only_the_files_of_the_page_are_served(tmp_path: Path, path: str) -> None:
    (tmp_path / "runs").mkdir()

    async def use(get: Get) -> None:
        from yarl import URL

        assert (await get(path))[0] == 404
        assert (await get(str(URL(path, encoded=True))))[0] == 404
        for name in PAGE_FILES:
            assert (await get(f"/web/{name}"))[0] == 200

    served([tmp_path / "runs"], use)


@pytest.mark.parametrize("line", ["-1", "x", "1.5", "9" * 30, ""])
def test_a_line_is_a_number(tmp_path: Path, line: str) -> None:
    folder = write_fake_run(tmp_path / "run", steps=8, prompts=2)

    async def use(get: Get) -> None:
        assert (await get("/api/group", params={"run": "run", "stage": "policy", "line": line}))[0] == 400
        assert (await get("/api/rows", params={"run": "run", "stage": "policy", "step_min": "x"}))[0] == 400

    served([folder], use)


def test_other_pages_cannot_use_the_server(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run", steps=8, prompts=2)

    async def use(get: Get) -> None:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::ffff:1.2.3.4]", "0.0.0.0"):
            status, _, found = await get("/api/runs", headers={"Host": host})
            assert (status, list(found)) == (403, ["error"])
        for host in ("localhost:9", "127.0.0.1", "[::1]:80"):
            assert (await get("/api/runs", headers={"Host": host}))[0] == 200
        _, headers, page = await get("/")
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert "<script>" not in page  # all scripts are files
        for method in ("POST", "PUT", "DELETE"):
            assert (await get("/api/runs", method=method))[0] == 405

    served([folder], use)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9", "Sec-Fetch-Site": "same-origin", "Host": "127.0.0.1:8765"}, 403),
        ({"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin", "Host": "127.0.0.1:8765"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_requests_of_other_pages_are_refused(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def use(get: Get) -> None:
        assert (await get("/api/runs", headers=headers))[0] == status

    served([tmp_path], use)


def test_beyond_this_machine_a_token_is_required(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run", steps=8, prompts=2)

    async def use(get: Get) -> None:
        for path in ("/", "/api/runs", "/web/app.js", "/?token=wrong", "/?token="):
            assert (await get(path, headers={"Host": "lab.example"}))[0] == 403
        status, headers, _ = await get("/?token=right", headers={"Host": "lab.example"})
        assert status == 200
        assert "HttpOnly" in headers["Set-Cookie"]
        assert "SameSite=Strict" in headers["Set-Cookie"]
        assert (await get("/api/runs"))[0] == 200  # the cookie

    served([folder], use, host="0.0.0.0", token="right")


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("0.0.0.0", False),
                       ("192.168.1.2", False), ("localhost.evil.example", False), ("", False)]
)  # fmt: skip
def test_what_is_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here


# ---- names of runs ---------------------------------------------------------------------------------------------------


def test_runs_are_found_below_folders_and_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("a/run", "a/deep/run", "b/run", ".hidden/run", "x/1/2/3/run", HOSTILE.replace("/", "∕")):
        write_lines(tmp_path / name / "rollouts" / "policy.jsonl", [])
    found = RunList([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "run"]).runs()
    assert list(found) == ["deep/run", "run", "b/run"]
    names = list(RunList([tmp_path]).runs())
    assert names == [HOSTILE.replace("/", "∕"), "a/deep/run", "a/run", "b/run"]
    with pytest.raises(UserError, match="no folder"):
        RunList([tmp_path / "none"])


def test_runs_that_begin_later_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.viewer.run_list.SCAN_SECONDS", 0.0)
    runs = RunList([tmp_path])
    assert runs.entries() == []
    before = runs.version
    write_fake_run(tmp_path / "late", steps=8, prompts=1)
    assert [entry["name"] for entry in runs.entries()] == ["late"]
    assert runs.version != before


def test_a_run_that_goes_on_shows_where_it_is(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run", steps=8, prompts=1)
    (folder / "summary.json").write_text(json.dumps({"title": "t", "state": "running", "stages": [], "models": {}}))
    (folder / "recipe.toml").write_text('[[stages]]\nname = "policy"\ntype = "policy"\nsteps = 50\n')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "policy", "step": 9, "seconds": 12.5, "metrics": {"reward/mean": 0.5}}\n{"stage": "pol')
    runs = RunList([folder])
    (entry,) = runs.entries()
    assert entry["stages"] == [{"name": "policy", "done": 9, "steps": None}]
    assert entry["seconds"] == 12.5
    overview = runs.run("run").overview()
    (policy,) = [stage for stage in overview["stages"] if stage["name"] == "policy"]
    assert (policy["done"], policy["steps"], policy["type"], overview["seconds"]) == (9, 50, "policy", 12.5)


def test_no_script_of_the_page_makes_markup_out_of_text() -> None:
    script = "".join(web_file(name) for name in PAGE_FILES if name.endswith(".js") and not name.startswith("uplot/"))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|javascript:|https?:(?!//www\.w3)", script
    )
