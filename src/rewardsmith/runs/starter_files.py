"""`rewardsmith init`: write a shipped recipe, and the files that it names, into a folder of the user."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.recipe_files import recipe_names, shipped_recipe
from rewardsmith.runs.catalogue import recipe_facts
from rewardsmith.storage import writing

COMPANIONS: Mapping[str, Sequence[str]] = {
    "own_reward": ("my_rewards.py", "numbers.jsonl", "numbers_held_out.jsonl"),
    "judge": ("questions.jsonl",),
    "arithmetic": ("biased_judges.py",),
    "translation": ("biased_judges.py",),
    "failures": ("flaky_judge.py",),
    "failures_cpu": ("flaky_judge.py",),
    "prime_cpu": ("noisy_steps.py",),
}
"""Files that a recipe names, in the folder of the recipe, by its file name without the suffix."""


def write_starter(name: str, folder: Path) -> list[Path]:
    """Write the recipe of a name with its companions into a folder; return the files, the recipe first.

    Nothing is written if one of the files is there.
    """
    source = shipped_recipe(name)
    if source is None:
        known = recipe_names()
        raise UserError(f"there is no recipe {name!r}.{nearest(name, known)} Known: {listing(known)}")
    stem = name.removesuffix(".toml").rpartition("/")[2].replace("-", "_")
    sources = {f"{stem}.toml": source} | {other: source.parent / other for other in COMPANIONS.get(source.stem, ())}
    files = [folder / file for file in sources]
    there = [str(file) for file in files if file.exists() or file.is_symlink()]
    if there:
        raise UserError(f"{', '.join(there)}: already there, and never overwritten. Name another folder, or move it")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, origin in zip(files, sources.values(), strict=True):
            with file.open("x", encoding="utf-8") as opened:  # never over a file that has come in the meantime
                opened.write(origin.read_text(encoding="utf-8"))
    return files


def next_steps(files: Sequence[Path], folder: Path) -> str:
    """Return what was written, and the commands that use it."""
    recipe = shlex.quote(files[0].name)
    needs, title = recipe_facts(files[0])
    needs = [need for need in needs if need != "init"]  # it has just been done
    lines = [f"wrote {', '.join(map(str, files))}", f"  {title}", ""]
    lines += [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    on = " --on verl" if "cluster" in needs else ""
    lines += [
        f"rewardsmith explain {recipe}   # every setting, with its default and a line about it",
        f"rewardsmith run {recipe}{on}   # train; Ctrl-C stops, and the same command resumes",
    ]
    if needs:
        lines += [
            "",
            f"It needs: {', '.join(needs)}. The comments at the top of {files[0].name} say which, and where from.",
        ]
    return "\n".join(lines) + "\n"
