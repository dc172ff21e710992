"""Which model a command asks, from files of several kinds, and what is wrong with those that cannot be used."""

from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.runs.preparing.models import Judge, Teacher, find_model
from tests.test_cli import QUICKSTART

MODELS = """
[models.writer]
type = "server"
urls = ["http://127.0.0.1:9/v1"]
concurrency = 8
[models.rater]
type = "server"
urls = ["http://127.0.0.1:9/v1"]
serves = "classify"
[models.again]
copy_of = "again"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text)
    return file


def test_a_file_of_models(tmp_path: Path) -> None:
    plain = MODELS.partition("[models.again]")[0]
    found = find_model(write(tmp_path, f'cache = "here"\n{plain}'), Judge(judge="writer"), ["models.writer.version=v2"])
    assert (found.name, found.cache, sorted(found.models)) == ("writer", "here", ["rater", "writer"])
    assert found.facts() == {"type": "server", "serves": "chat", "version": "v2", "body": {}}


def test_a_recipe_or_a_reward_table_will_do(tmp_path: Path) -> None:
    assert find_model(QUICKSTART, Teacher(teacher="policy"), ["seed=7"]).seed == 7
    plain = MODELS.partition("[models.again]")[0]
    reward = write(tmp_path, f'type = "rubric"\nmodel = "writer"\n{plain}')
    assert find_model(reward, Judge(judge="writer")).name == "writer"


BAD = [
    ("", 'judge = "writer"\n    there is no [models.writer]'),
    (MODELS.replace("writer", "wirter"), 'Did you mean "wirter"?'),
    (MODELS.replace('"chat"', "x").replace("[models.writer]", "[models.w2]").replace("rater", "writer"), "that writes"),
    (MODELS, "models.again.copy_of"),
    (MODELS.replace("concurrency", "concurency"), 'Did you mean "concurrency"?'),
    ("models = 3", "models"),
    ("[modles.x]\n", 'Did you mean "models"?'),
    ("not toml", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        find_model(write(tmp_path, text), Judge(judge="writer"))
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, MODELS)
    with pytest.raises(UserError, match=r'Did you mean "models\.toml"'):
        find_model(tmp_path / "modls.toml", Judge(judge="writer"))
