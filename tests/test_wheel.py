"""The wheel that is built, installed in a clean environment outside of the repository."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import rewardsmith

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMALL = [
    "stages.sft.steps=2", "stages.policy.steps=2", "stages.policy.prompts_per_step=4",
    "stages.policy.validation.prompts=4", "stages.greedy.prompts=4",
]  # fmt: skip


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a command without what this environment would add to its imports; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel.

    Its dependencies are those of this environment: a path file adds them, and path files within them, such as that of
    an editable rewardsmith, are not followed.
    """
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, symlinks=True)
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", wheel, cwd=dist)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    where = run(place / "bin" / "python", "-c", "import rewardsmith; print(rewardsmith.__file__)", cwd=dist)
    assert Path(where.strip()).is_relative_to(place)
    return place / "bin"


def test_the_wheel_has_the_package_and_the_recipes(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "rewardsmith"
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert {f"rewardsmith/{file.relative_to(package)}" for file in files} <= names
    recipes = [file for file in (ROOT / "recipes").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert {f"rewardsmith/{file.relative_to(ROOT)}" for file in recipes} <= names
    assert {name.split("/")[0] for name in names} == {"rewardsmith", f"rewardsmith-{rewardsmith.__version__}.dist-info"}
    assert [name for name in names if name.endswith(".pyc")] == []


def test_the_sdist_has_what_the_wheel_is_made_of(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/rewardsmith/py.typed", "recipes/quickstart.toml"} <= names
    assert [name for name in names if name.startswith(("tests", "benchmarks", ".ci"))] == []


def test_the_quickstart_runs_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    run(installed / "rewardsmith", "run", "quickstart", *SMALL, cwd=tmp_path)
    assert (tmp_path / "runs" / "quickstart" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "runs" / "quickstart" / "models" / "policy" / "model.safetensors").exists()
    run(
        installed / "python",
        "-m",
        "rewardsmith",
        "score",
        "runs/quickstart",
        "--reward",
        "quickstart:policy",
        cwd=tmp_path,
    )


def test_a_project_begins_with_init(installed: Path, tmp_path: Path) -> None:
    command = installed / "rewardsmith"
    assert run(command, "--version", cwd=tmp_path) == f"rewardsmith {rewardsmith.__version__}\n"
    assert "own_reward.toml" in run(command, "init", "own-reward", "project", cwd=tmp_path)
    project = tmp_path / "project"
    assert "my_rewards:Brevity" in run(command, "explain", "own_reward.toml", cwd=project)
    run(command, "run", "own_reward.toml", *SMALL[:4], cwd=project)
    assert (project / "runs" / "own_reward" / "summary.json").exists()
    assert "never overwritten" in run(command, "init", "own-reward", "project", cwd=tmp_path, status=2)


def test_what_a_recipe_can_name_is_listed_and_shown(installed: Path, tmp_path: Path) -> None:
    command = installed / "rewardsmith"
    for family in ("rewards", "rules", "advantages", "losses", "data", "recipes"):
        run(command, "list", family, cwd=tmp_path)
    assert str(installed.parent) in run(command, "show", "recipes", "quickstart", cwd=tmp_path)
    assert "max_length" in run(command, "show", "rules", "length", cwd=tmp_path)
    assert "--install-completion" in run(command, "--help", cwd=tmp_path)
