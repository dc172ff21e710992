"""verl's reward functions by path: called as verl calls them, and what is no number is a failure."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, UserError
from rewardsmith.data import Parquet
from rewardsmith.rewards import Halt, make_reward
from rewardsmith.rewards.verl_function import VerlFunction
from rewardsmith.types import Score

FILE = Path(__file__).parent / "verl_files" / "gsm8k_style.py"
PROMPT = Prompt(
    "p",
    [Message("user", "?")],
    source="openai/gsm8k",
    answer="72",
    info={"extra_info": {"index": 3, "tags": ["a", {"b": [1.5]}]}, "ability": "math"},
)


def scores(reward: Any, *texts: str, prompt: Prompt = PROMPT) -> list[Score]:
    return list(asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts]))))


def written(folder: Path, body: str, head: str = "def compute_score(data_source, solution_str, ground_truth, **more):"):
    file = folder / "mine.py"
    file.write_text(f"{head}\n    {body}\n")
    return str(file)


def results(folder: Path, body: str, *texts: str, **settings: Any) -> list[float | str]:
    reward = VerlFunction(path=written(folder, body), **settings)
    return [s.value if s.failure is None else s.failure.kind for s in scores(reward, *(texts or ("answer",)))]


def test_a_file_as_verl_has_it_scores_rows_as_verl_has_them(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"question {i}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    table = {
        "type": "verl_function",
        "path": str(FILE),
        "reward_kwargs": {"format_bonus": 0.1},
        "parts": ["acc", "index"],
    }
    reward = make_reward(table)
    asyncio.run(reward.check())
    for prompt in Parquet(path=str(tmp_path / "train.parquet")).prompts(seed=0):
        i = float(prompt.answer)
        right, wrong, none = scores(reward, f"so #### {prompt.answer}", "#### 99", "no idea", prompt=prompt)
        assert (right.value, wrong.value, none.value) == (1.0, 0.1, 0.0)
        assert [right.parts[name].value for name in ("acc", "index")] == [1.0, i]
        assert [wrong.parts[name].value for name in ("acc", "index")] == [0.0, i]
        assert none.parts["acc"].failure.kind == "skipped"
        assert '"pred": "99"' in wrong.feedback
    (failed,) = scores(reward, "#### 1", prompt=Prompt("q", [Message("user", "?")], source="other", answer="1"))
    assert failed.failure.kind == "crashed"
    assert "NotImplementedError: reward function is not implemented for data_source='other'" in failed.failure.detail
    assert set(failed.parts) == {"acc", "index"}


def test_it_gets_the_row_as_plain_python_and_may_change_it(tmp_path: Path) -> None:
    body = (
        "assert type(more['extra_info']) is dict and type(more['extra_info']['tags'][1]) is dict\n"
        "    assert more['extra_info'].pop('index') == 3 and more['extra_info']['tags'].pop() == {'b': [1.5]}\n"
        "    assert more['extra_info']['num_turns'] == 2 and more['extra_info']['rollout_reward_scores'] == {}\n"
        "    return len(solution_str) if (data_source, ground_truth) == ('openai/gsm8k', '72') else None"
    )
    assert results(tmp_path, body, "a", "bb", "a", "ccc") == [1.0, 2.0, 1.0, 3.0]


def test_coroutine_functions() -> None:
    reward = VerlFunction(path=str(FILE), name="waits")
    assert [s.value for s in scores(reward, "it is 72", "it is 7")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("1", 1.0),
        ("True", 1.0),
        ("__import__('numpy').float32(0.5)", 0.5),
        ("{'score': False, 'acc': 'x'}", 0.0),
        ("float('nan')", "invalid"),
        ("{'score': float('inf')}", "invalid"),
        ("None", "crashed"),
        ("'1.0'", "crashed"),
        ("[1.0]", "crashed"),
        ("{'acc': 1.0}", "crashed"),
        ("1 / 0", "crashed"),
        ("__import__('sys').exit(0)", "crashed"),
        ("__import__('os')._exit(0)", "crashed"),
        ("__import__('time').sleep(60)", "timeout"),
    ],
)
def test_what_is_no_number_is_a_failure(tmp_path: Path, returned: str, expected: float | str) -> None:
    assert results(tmp_path, f"return {returned}", deadline=1.0) == [expected]


def test_one_answer_that_hangs_costs_the_others_nothing(tmp_path: Path) -> None:
    body = "return __import__('time').sleep(60) if solution_str == 'hang' else 0.5"
    assert results(tmp_path, body, "a", "hang", "b", deadline=1.0) == [0.5, "timeout", 0.5]


def test_halt_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(Halt, match="no licence"):
        results(tmp_path, "from rewardsmith.rewards import Halt; raise Halt('no licence')")


def test_files_of_its_folder_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "my_answers.py").write_text("def value(text):\n    return len(text) / 2\n")
    assert results(tmp_path, "import my_answers; return my_answers.value(solution_str)", "abc") == [1.5]


def test_what_cannot_be_loaded_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"path = 'no\.py': there is no such file"):
        make_reward({"type": "verl_function", "path": "no.py"})
    with pytest.raises(UserError, match='parts has "score"'):
        VerlFunction(path=str(FILE), parts=("score",))
    for body, name, message in (
        ("return 1", "compute_scores", 'it has no function compute_scores. Did you mean "compute_score"?'),
        ("return (", "compute_score", "SyntaxError"),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?").replace(".", r"\.")):
            asyncio.run(VerlFunction(path=written(tmp_path, body), name=name).check())
