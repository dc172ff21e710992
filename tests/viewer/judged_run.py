"""A run with a rule and a judge, whose recipe can be built without its models."""

from pathlib import Path

from rewardsmith import Failure, Message, Prompt, Rollout, Score
from tests.runs.fake_run import record, write_lines

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"

RECIPE = """\
title = "a rule and a judge"
seed = 3
[models.policy]
init = "tiny-llama"
[models.judge]
type = "server"
urls = ["http://127.0.0.1:9"]
model = "grader-8b"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 4
[stages.reward]
type = "sum"
parts.rule = { type = "rule", rule = "arithmetic" }
parts.judge = { type = "rubric", model = "judge", criteria = "5 points: shows its steps\\n5 points: is right" }
"""


def write_judged_run(folder: Path) -> Path:
    rows = []
    for step in range(1, 5):
        prompt = Prompt(f"p{step}", [Message("user", f"What is {step} + {step}?")], source="sums", answer=str(2 * step))
        texts = [f"{step} + {step} = {2 * step}. #{2 * step}", HOSTILE, "I refuse."]
        judges = [
            Score(0.9, feedback="All steps are shown. Grade: 9"),
            Score(0.1, feedback=f"It quotes {HOSTILE}"),
            Score(failure=Failure("unparsable", "no grade in the reply", attempts=3), feedback="I like it."),
        ]
        scores = [
            Score(
                None if judge.failure else 1.0 + (judge.value or 0.0),
                judge.failure,
                {"rule": Score(float(i == 0)), "judge": judge},
            )
            for i, judge in enumerate(judges)
        ]
        rollouts = [Rollout(text, [1] * len(text.split())) for text in texts]
        rows.append(record(rollouts, scores, step, prompt, advantages=[0.5, -0.5, None]))
    write_lines(folder / "rollouts" / "policy.jsonl", rows)
    metrics = [
        {"stage": "policy", "step": i, "metrics": {"reward/mean": i / 4, "reward/rule": 0.5, "lr": 0.001}}
        for i in range(1, 5)
    ]
    write_lines(folder / "metrics.jsonl", metrics)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder
