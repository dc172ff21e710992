"""What takes the place of models and data that recipes name and that are not shipped."""

import fcntl
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardsmith.data import SOURCES
from rewardsmith.text.rankings import write_ranking
from tests.engines.test_sentences import write_sentences
from tests.tiny_judges import teach

PROBLEMS = [(f"What is {i} + {i}?", str(2 * i)) for i in range(12)]
# The built-in prompts are longer than what a tiny model reads.
TEMPLATES = {"rubric": "{{question}}{{criteria}}{{response}}", "ranking": "{{question}}{{candidates}}"}
# A rule that holds for some answers of a model that knows nothing.
SOMETIMES = '{ type = "rule", rule = { type = "regex", pattern = "[a-p]" } }'


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this run of the tests share."""
    mine = factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


def stand_ins(path: Path, folder: Path, shared: Path) -> list[str]:
    """Return the overrides with which a recipe runs here.

    Args:
        path: the recipe.
        folder: for files of this test.
        shared: a folder for all tests, where judges are taught once.
    """
    if path.parent.name == "prime" and path.stem == "gsm8k":
        return _prime(folder)
    if path.stem == "gsm8k":
        return _gsm8k(folder)
    if path.parent.name == "judges":
        kind = path.stem.partition("_")[0]
        return [
            f'data.train.path="{write_rows(folder)}"',
            "models.policy.init=tiny-llama",
            "stages.0.sampling.max_tokens=8",
            "stages.0.rollouts_per_prompt=4",
            f'models.judge={{ init = "{_judge(kind, shared)}" }}',
            *_REWARDS[path.stem](folder),
        ]
    return _OF_JUDGES[path.stem](folder, shared) if path.stem in _OF_JUDGES else []


def _gsm8k(folder: Path) -> list[str]:
    rows = [{"question": question, "answer": f"Twice that.\n#### {answer}"} for question, answer in PROBLEMS]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f'data.{name}.path="{file}"' for name in ("train", "test")]
    return ["models.policy.init=tiny-llama", *files, "stages.0.sampling.max_tokens=8"]


def _prime(folder: Path) -> list[str]:
    rows = write_rows(folder)
    return [
        "models.policy.init=tiny-llama",
        *(f'data.{name}.path="{rows}"' for name in ("train", "test")),
        *("stages.0.sampling.max_tokens=8", "stages.0.validation.sampling.max_tokens=8"),
        # Answers that are right now and then, and groups of every kind: otherwise nothing would be learned.
        f"stages.0.reward.parts.answer={SOMETIMES}",
        *("stages.0.select.lowest=0", "stages.0.select.highest=1"),
    ]


def write_rows(folder: Path) -> Path:
    """Write rows in verl's schema, with what the judges need beside."""
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": answer},
            "rm_prompt": "Grade {response}",
            "rm_prompt_0": "Grade {response}",
            "extra_info": {"criteria": "The sum is right: 10", "src_lang": "en", "trg_lang": "de"},
        }
        for question, answer in PROBLEMS
    ]
    file = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def _template(folder: Path, kind: str) -> str:
    file = folder / f"{kind}.txt"
    file.write_text(TEMPLATES[kind])
    return str(file)


def _rubric(place: str) -> Callable[[Path], list[str]]:
    def changes(folder: Path) -> list[str]:
        rule = [f"stages.0.reward.rule={SOMETIMES}"] if place else []
        return [f'stages.0.reward{place}.template="{_template(folder, "rubric")}"', *rule]

    return changes


_REWARDS: dict[str, Callable[[Path], list[str]]] = {
    "rubric_only": _rubric(""),
    "rubric_addon": _rubric(".judge"),
    "rubric_mixed": _rubric(".judge"),
    "rubric_gate": _rubric(".judge"),
    "ranking": lambda folder: [
        "stages.0.overlong.buffer=4",
        f'stages.0.reward.template="{_template(folder, "ranking")}"',
        *("stages.0.reward.extract=whole", "stages.0.reward.noun=Candidate"),
    ],
    "several": lambda folder: [
        "models.preference.init=tiny-llama",
        f'models.sentences.init="{write_sentences(folder / "sentences")}"',
        f"stages.0.reward.parts.rule={SOMETIMES}",
    ],
}


def _rl_of_a_judge(folder: Path, shared: Path) -> list[str]:
    asked = [(f"Grade {i}", f"Fine.\nTotal Score: {i}/10", str(i / 10)) for i in range(11)]
    sft, rl = _taught(folder, asked, "jsonl")
    return [
        "models.judge.init=tiny-llama",
        f'data.shown.path="{sft}"',
        f'data.train.path="{rl}"',
        f'data.held_out.path="{rl}"',
        *("stages.1.sampling.max_tokens=16", "stages.1.validation.sampling.max_tokens=16"),
    ]


def _ranker(stage: str) -> Callable[[Path, Path], list[str]]:
    def changes(folder: Path, shared: Path) -> list[str]:
        scores = [{"A": i, "B": 10 - i} for i in range(11)]
        asked = [(f"Rank {i}", write_ranking(scores[i], "So."), json.dumps(scores[i])) for i in range(11)]
        file = _taught(folder, asked, "parquet")[0 if stage == "sft" else 1]
        files = [f'data.{name}.path="{file}"' for name in ("train", "held_out")]
        short = ["stages.0.sampling.max_tokens=16", "stages.0.validation.sampling.max_tokens=16"]
        return ['models.ranker={ init = "tiny-llama" }', *files, *(short if stage == "rl" else [])]

    return changes


def _taught(folder: Path, asked: list[tuple[str, str, str]], kind: str) -> tuple[Path, Path]:
    """Write (question, answer to imitate, truth) of a judge as demonstrations and as rows in verl's schema."""
    prompts = [[{"role": "user", "content": question}] for question, _, _ in asked]
    shown = [
        {"messages": [*prompt, {"role": "assistant", "content": answer}]}
        for prompt, (_, answer, _) in zip(prompts, asked, strict=True)
    ]
    rows = [
        {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": truth}}
        for prompt, (_, _, truth) in zip(prompts, asked, strict=True)
    ]
    return _written(shown, folder / f"sft.{kind}"), _written(rows, folder / f"rl.{kind}")


def _written(rows: list[dict[str, Any]], file: Path) -> Path:
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _policy_with_a_ranker(folder: Path, shared: Path) -> list[str]:
    return [
        f'data.train.path="{write_rows(folder)}"',
        "models.policy.init=tiny-llama",
        f'models.ranker={{ init = "{_judge("ranking", shared)}" }}',
        "stages.0.sampling.max_tokens=8",
        *_REWARDS["ranking"](folder),
    ]


_OF_JUDGES: dict[str, Callable[[Path, Path], list[str]]] = {
    "rl_of_a_judge": _rl_of_a_judge,
    "sft_of_a_ranker": _ranker("sft"),
    "rl_of_a_ranker": _ranker("rl"),
    "policy_with_a_ranker": _policy_with_a_ranker,
}

# Recipes of clusters: their judges are behind a server that replies as `reply_as_judge` does.


def scale_stand_ins(path: Path, folder: Path, url: str) -> list[str]:
    """Return the overrides with which a recipe of `recipes/scale` runs here; judges are served at `url`."""
    served = f'type = "server", urls = ["{url}"]'
    data = f'data.train.path="{write_rows(folder)}"'
    if path.stem == "prime":
        return _prime(folder)
    if path.stem == "rrm":
        tests = [data.replace("train", "test", 1), "stages.0.validation.sampling.max_tokens=8"]
        return [data, *tests, *_POLICY, f"models.judge={{ {served} }}"]
    if path.stem == "mt_with_grrm":
        whole = ["stages.0.overlong.buffer=4", "stages.0.reward.extract=whole"]
        return [data, *_POLICY, f"models.ranker={{ {served} }}", *whole]
    if path.stem == "several_rms":
        others = {"judge": "chat", "preference": "classify", "sentences": "embed"}
        models = [f'models.{name}={{ {served}, serves = "{what}" }}' for name, what in others.items()]
        return [data, *_POLICY, *models, f"stages.0.reward.parts.rule={SOMETIMES}"]
    if path.stem == "train_rrm":
        return _rl_of_a_judge(folder, folder)
    ranker = _ranker(path.stem.removeprefix("grrm_"))(folder, folder)
    if path.stem == "grrm_sft":  # long enough to write the form, so that grrm_rl has something to learn from
        return [*ranker, "stages.0.epochs=24", "stages.0.optimizer.lr=3e-3", "stages.0.optimizer.warmup=5"]
    return [*ranker, "stages.0.sampling.max_tokens=72", "stages.0.validation.sampling.max_tokens=72"]


_POLICY = ["models.policy.init=tiny-llama", "stages.0.sampling.max_tokens=8"]


def reply_as_judge(body: dict[str, Any]) -> str:
    """Reply to a request for a grade, a score or a ranking, as a pure function of the prompt."""
    prompt = str(body["messages"][-1]["content"])
    points = sum(prompt.encode()) % 11
    letters = re.findall(r"^\w+ ([A-Z]):$", prompt, re.MULTILINE)
    if letters:
        return write_ranking({letter: (points + 3 * i) % 11 for i, letter in enumerate(letters)}, "So.")
    rubric = "Total Score" in prompt or "The answer is the last result" in prompt
    return f"Fine.\n\nTotal Score: {points}/10" if rubric else f"Score: {points % 11}"


_VERDICTS: dict[str, Callable[[random.Random], str]] = {
    "rubric": lambda dice: f"Total Score: {dice.randrange(11)}/10",
    "ranking": lambda dice: "So.\n\n### Final Ranking:\n\nA > B > C > D\n\n### Scores:\n\nA: 8, B: 6, C: 4, D: 2",
    "several": lambda dice: f"Score: {dice.randrange(11)}",
}


def _judge(kind: str, shared: Path) -> Path:
    """Return the folder of a judge, taught when the first test needs it; tests run in several processes."""
    with (shared / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = shared / kind
        if not (place / "config.json").exists():
            work = shared / f"{kind}-files"
            work.mkdir(exist_ok=True)
            source = SOURCES["parquet"](path=str(write_rows(work)))
            teach(place, _table(kind, work), list(source.prompts(0)), _VERDICTS[kind], n=4)
        return place


def _table(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "several":
        return {"type": "judge", "model": "judge", "prompt_field": "rm_prompt"}
    return {"type": kind, "model": "judge", "template": _template(folder, kind)}
