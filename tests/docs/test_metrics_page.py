"""Every metric that a run logs is on the page of metrics."""

import re
from pathlib import Path
from typing import Any

import pytest

import rewardsmith as rs
from tests.doc_pages import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
WORDS = {"PART": ".+", "KIND": "[a-z]+", "LABEL": ".+", "NAME": r"[\w-]+", "SOURCE": r"[\w.-]+", "REASON": "[a-z_]+"}


def documented() -> re.Pattern[str]:
    """Return a pattern of all names on the page; a name without a slash has the prefix of the first one in its line."""
    names = []
    for section in re.split(r"^## ", PAGE, flags=re.M):
        of_process = section.startswith("Process rewards")
        for line in section.splitlines():
            spans = [span for span in re.findall(r"`([^`\s]+)`", line) if not span.isupper()]
            prefix = spans[0].rpartition("/")[0] if spans else ""
            for span in spans:
                name = span.replace("…/", f"{prefix}/" if prefix.count("/") > 1 else f"{spans[0]}/")
                names += [name, f"{prefix}/{name}"]
                names += [f"learned/PART/{name}", f"validation/PART/{name}"] if of_process else []
    patterns = set()
    for name in names:
        pattern = re.escape(name.rstrip("…"))
        for word, meaning in WORDS.items():
            pattern = pattern.replace(word, meaning)
        patterns.add(re.sub(r"@[nk]$", r"@\\d+", pattern) + ("[^/]+" if name.endswith("…") else ""))
    return re.compile("|".join(sorted(patterns)))


def fails_for_some(response: str) -> float:
    return 1 / (len(response) % 3)


ARITHMETIC = {"type": "arithmetic", "operations": 1}
DATA = {"data": "train"}
VALIDATION: dict[str, Any] = {"data": "train"}
ANSWER = {"type": "rule", "rule": "arithmetic"}
SMALL = {"model": "policy", **DATA, "steps": 2, "prompts_per_step": 4, "sampling": {"max_tokens": 8}}
WITH_CRITIC = [
    {"type": "sft", "model": "policy", "data": "train", "steps": 1, "validation": VALIDATION | {"demonstrations": 4}},
    {
        "type": "policy",
        **SMALL,
        "advantage": "gae",
        "critic": {"model": "critic"},
        "kl": {"coefficient": 0.1},
        "overlong": {"buffer": 2},
        "reward": {"type": "sum", "parts": {"answer": fails_for_some}},
        "validation": VALIDATION | {"prompts": 4},
    },
    {"type": "evaluate", "model": "policy", **DATA, "prompts": 4, "sampling": {"max_tokens": 8}, "reward": ANSWER},
]
WATCHED = [
    {
        "type": "policy",
        **SMALL,
        "reward": {"type": "sum", "parts": {"digits": lambda response: sum(map(str.isdigit, response)) / 8}},
        "audit": {"reference": lambda response: len(response) % 2, "on_alarm": "lower", "lower": "digits", "every": 1},
    },
]
IMPLICIT = {"type": "implicit", "model": "prm", "separator": ";", "truth": "arithmetic"}
WITH_PROCESS = [
    {
        "type": "policy",
        **SMALL,
        "ahead": 1,
        "advantage": {"type": "rloo", "combine": "after"},
        "reward": {"type": "sum", "parts": {"answer": fails_for_some, "form": ANSWER}},
    },
    {
        "type": "process_model",
        **SMALL,
        "reward": {"type": "sum", "parts": {"answer": ANSWER, "process": IMPLICIT}},
        "validation": VALIDATION | {"prompts": 4},
    },
]


@pytest.mark.parametrize("stages", [WITH_CRITIC, WITH_PROCESS, WATCHED], ids=["critic", "process", "watch"])
def test_metrics_of_a_run_are_on_the_page(stages: list[dict[str, Any]], tmp_path: Path) -> None:
    models = {
        "policy": {"init": "tiny-llama"},
        "critic": {"init": "tiny-llama", "head": "scalar"},
        "prm": {"copy_of": "policy"},
    }
    recipe = {"models": models, "data": {"train": ARITHMETIC}, "stages": stages}
    run = rs.train(recipe, folder=tmp_path / "run", quiet=True)
    known = documented()
    logged = {name for row in run.metrics() for name in row} - {"stage", "step", "seconds"}
    assert len(logged) > 40
    assert sorted(name for name in logged if not known.fullmatch(name)) == []
