"""What a user can get wrong ends with one message that says what and where, and status 2; never with a traceback."""

import os
from pathlib import Path

import pytest
import torch

from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from tests.runs.processes import REWARD, command, prepared, run

MORE = '''
class Prompts:
    """Prompts without answers."""

    def prompts(self, seed):
        return iter(())


class Keyless:
    """Needs what is not there."""

    def __init__(self):
        raise RuntimeError("no key")

    async def score(self, group):
        return ()
'''
ROWS = ['{"prompt": "1+1?", "response": "2"}', '{"prompt": 7, "response": "3"}', '{"prompt": "2+2?"}']


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared with models and data that are not as they should be."""
    folder = prepared(tmp_path_factory.mktemp("bad"))
    (folder / "digits.py").write_text(REWARD + MORE)
    for name in ("cut", "untemplated"):
        save_folder(*make_tiny("tiny-llama", seed=5), folder / name)
    os.truncate(folder / "cut/model.safetensors", 5000)
    (folder / "untemplated/chat_template.jinja").unlink()
    (folder / "rows.jsonl").write_text("\n".join(ROWS))
    (folder / "empty.jsonl").touch()
    return folder


def refused(place: Path, *arguments: str) -> str:
    """Run, and return the message after `error: `."""
    status, said = run(place, *arguments, "--folder", "it")
    assert "Traceback" not in said
    assert status == 2, said
    return said.partition("error: ")[2]


def test_a_model_that_is_not_there(place: Path) -> None:
    message = refused(place, "models.policy.init=./untemplate")
    assert message == 'models.policy.init = "./untemplate": there is no such folder. Did you mean "untemplated"?\n'


def test_a_damaged_model(place: Path) -> None:
    message = refused(place, "models.policy.init=./cut", "--accept-changes")
    assert message.startswith('models.policy.init = "./cut": cut/model.safetensors is damaged (')
    assert "copy or download it again" in message


def test_a_tokenizer_without_a_chat_template(place: Path) -> None:
    message = refused(place, "models.policy.init=./untemplated", "--accept-changes")
    assert message.startswith('models.policy.init = "./untemplated": the tokenizer has no chat template')
    assert 'set chat = "chatml", or put a chat_template.jinja there' in message


def test_bad_rows_are_all_named(place: Path) -> None:
    message = refused(place, 'data.train={ type = "jsonl", path = "rows.jsonl" }', "--accept-changes")
    assert message.splitlines()[:3] == [
        "2 of 3 rows cannot be used:",
        "  rows.jsonl, line 2",
        "    prompt is 7: it must be text, or a list of messages with role and content",
    ]
    assert message.splitlines()[3] == "  rows.jsonl, line 3"
    assert "there is no response" in message.splitlines()[4]


def test_a_file_without_rows(place: Path) -> None:
    message = refused(place, 'data.train={ type = "jsonl", path = "empty.jsonl" }', "--accept-changes")
    assert '"empty.jsonl" has no rows' in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(place: Path) -> None:
    message = refused(place, "models.policy.device=cuda", "--accept-changes")
    assert message.startswith('models.policy.device = "cuda": ')
    assert 'Set device = "cpu", or "auto"' in message


def test_sft_needs_demonstrations(place: Path) -> None:
    message = refused(place, 'data.train="digits:Prompts"', "--accept-changes")
    assert message == 'data.train has no demonstrations: a source of type "digits:Prompts" has none\n'


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("stages.sft.stepz=3", ["stages.0.stepz = 3", 'Did you mean "steps"?']),
        ("stages.polcy.steps=3", ["'polcy'", 'Did you mean "policy"?']),
        ("nonsense", ["cannot read the override 'nonsense': write it as key.path=value"]),
        ("stages.policy.reward=nowhere:Reward", ["stages.1.reward", "cannot import the module 'nowhere'"]),
        ("stages.policy.reward=digits:Digts", ["the module 'digits'", "has no 'Digts'"]),
        ("stages.policy.model=polcy", ["stages.1.model", 'Did you mean "policy"?']),
        ("stages.policy.validation.data=held", ["stages.1.validation.data", 'Did you mean "held_out"?']),
        ('trackers=["tensorbord"]', ["trackers.0", 'Did you mean "tensorboard"?']),
    ],
)
def test_a_bad_recipe_makes_no_folder(override: str, parts: list[str], place: Path) -> None:
    status, said = run(place, override, "--folder", "not-made")
    assert "Traceback" not in said
    assert status == 2
    assert said.startswith("error: ")
    for part in parts:
        assert part in said
    assert not (place / "not-made").exists()


@pytest.mark.parametrize("name", ["a/b", "../x", ".."])
def test_a_stage_whose_name_is_no_file_name(name: str, place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "not-made"
    status, said = run(place, f"stages.sft.name='{name}'", "stages.sft.steps=1", "--folder", str(folder))
    assert status == 2
    assert "stages.0.name" in said
    assert not folder.exists()


def test_a_reward_that_cannot_be_made(place: Path) -> None:
    message = refused(place, "stages.policy.reward=digits:Keyless", "--accept-changes")
    assert "stages.1.reward" in message
    assert "no key" in message


def test_a_bad_choice_of_resume(place: Path) -> None:
    assert refused(place, "--resume", "perhaps") == "--resume is 'perhaps': it must be auto, must or never\n"


@pytest.mark.parametrize("name", ["run", "explain"])
def test_help_teaches_by_an_example(name: str, place: Path) -> None:
    done = command(place, name, "--help")
    assert done.returncode == 0
    assert f"Example: rewardsmith {name} recipes/quickstart.toml" in done.stdout
    assert "Ctrl-C saves; the same command goes on." in done.stdout or name == "explain"
