"""What may be imported by what, and what an import costs."""

import subprocess
import sys

from importlinter.cli import lint_imports

BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_rooms_import_one_another_in_one_direction() -> None:
    assert lint_imports(no_cache=True) == 0


def test_the_package_loads_no_heavy_library() -> None:
    loaded = run("import sys, rewardsmith; print(sorted({m.split('.')[0] for m in sys.modules}))")
    for heavy in ("torch", "pydantic", "jaxtyping", "rich", "cyclopts"):
        assert f"'{heavy}'" not in loaded


def test_nouns_data_rewards_and_recipes_work_without_torch() -> None:
    code = BLOCK.format(blocked={"torch", "vllm", "ray", "wandb"}) + (
        "import rewardsmith, rewardsmith.records, rewardsmith.data, rewardsmith.rewards\n"
        "import rewardsmith.algorithms.ranks, rewardsmith.algorithms.judge_statistics\n"
        "from rewardsmith.recipe import explain, parse_recipe\n"
        "table = {'models': {'m': {'init': 'x'}}, 'data': {'d': {'type': 'arithmetic'}},\n"
        "         'stages': [{'type': 'sft', 'model': 'm', 'data': 'd', 'steps': 1}]}\n"
        "print(explain(parse_recipe(table)))"
    )
    assert 'type = "sft"' in run(code)
