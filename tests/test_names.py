"""No file name and no class name means two things in the package."""

import ast
from collections import Counter
from pathlib import Path

import rewardsmith

FILES = sorted(Path(rewardsmith.__file__).parent.rglob("*.py"))


def test_every_file_has_a_name_of_its_own() -> None:
    names = Counter(file.name for file in FILES if not file.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_class_has_a_name_of_its_own() -> None:
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in FILES)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
