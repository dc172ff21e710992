"""What the pages about judges show can be used: their recipes and hooks."""

import asyncio
import doctest
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rewardsmith import Score
from rewardsmith.config import settings_of
from rewardsmith.engines import MODELS
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.judges.custom import CustomJudge
from rewardsmith.rewards.judges.graders import Rubric, Verifier
from rewardsmith.rewards.judges.hooks import MEMORY, Hook
from rewardsmith.rewards.judges.pairwise import Pairwise
from rewardsmith.rewards.judges.plugin import Plugin
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.rewards.judges.scalar_judges import Classifier, CritiqueSettings, CurveSettings, Similarity
from rewardsmith.text import grades, verdicts
from rewardsmith.text.judge_replies import Unparsable
from tests.rewards.judges.scripted_judges import group, judge

ROOT = Path(__file__).parents[3]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("judges", "ranking", "scalar_models")
}
PAGE = PAGES["judges"]
SETTINGS = {
    "judges": (Rubric, Verifier, CustomJudge, Plugin),
    "ranking": (RankingJudge, Pairwise),
    "scalar_models": (Classifier, CritiqueSettings, Similarity),
}


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.S | re.M)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks and the plug-in that the pages name."""
    (block,) = blocks("python")
    hooks = ModuleType("my_hooks")
    exec(compile(block, "judges.md", "exec"), vars(hooks))
    monkeypatch.setitem(sys.modules, "my_hooks", hooks)
    (tmp_path / "plugins").mkdir()
    shutil.copy(Path(__file__).parent / "plugins" / "flags.py", tmp_path / "plugins" / "rider_reward.py")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("block", [block for page in PAGES.values() for block in blocks("toml", page)])
@pytest.mark.usefixtures("files")
def test_recipes(block: str) -> None:
    table = tomllib.loads(block)
    assert set(table) <= {"reward", "models"}
    make_reward(table["reward"])
    for model in table.get("models", {}).values():
        MODELS[model.pop("type", "embedded")].model_validate(model)


def test_the_page_shows_the_built_in_prompts() -> None:
    folder = ROOT / "src" / "rewardsmith" / "text" / "prompts"
    assert blocks("text")[0] == (folder / "rubric.txt").read_text(encoding="utf-8")
    assert all(f"`{file.stem}`" in PAGE for file in folder.glob("*.txt"))
    _, model = judge(CustomJudge, ["Score: 5"], group("42", p="Is {response} right?"), prompt_field="p")
    assert f"\n````text\n{model.seen[0]}\n````\n" in PAGE


def test_the_page_shows_the_values_of_the_curve() -> None:
    shown = " | ".join(f"{CurveSettings().value(s):.3f}" for s in (0.65, 0.70, 0.75, 0.80, 0.85))
    assert f"| here | {shown} |" in PAGES["scalar_models"]


def test_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("python")
    (tmp_path / "hooks_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    ask = Hook("hooks_of_the_page:ask", "preprocess", deadline=60, memory=MEMORY)
    read = Hook("hooks_of_the_page:read", "postprocess", deadline=60, memory=MEMORY)
    (question,) = asyncio.run(ask.questions(group("Please.")))
    assert question.messages[0].content == "Is this polite?\n\n```\nPlease.\n```"
    assert asyncio.run(read.value("Yes\n")) == Score(1.0, feedback="Yes\n")
    with pytest.raises(Unparsable, match="neither yes nor no"):
        asyncio.run(read.value("perhaps"))


def test_every_setting_is_named() -> None:
    for name, kinds in SETTINGS.items():
        for kind in kinds:
            for setting in settings_of(kind).model_fields:
                assert f"`{setting}" in PAGES[name] or f"\n{setting} = " in PAGES[name], (kind.__name__, setting)


def test_examples_in_docstrings() -> None:
    for module in (grades, verdicts):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed
