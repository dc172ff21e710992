"""Time and memory of `prepare gqm-rl` and `gqm-sft`.

    python benchmarks/prepare.py [--rows 10000 100000] [--max-peer 100000] [--form rl]

Synthetic groups of 2 to 4 candidates with an analysis, augmented with 4 subgroups and 4 orders each, to Parquet. The
peer is a script in the way of GRRM's own: rows in a list, prompts by an f-string, one shuffle, one table. It does not
check rows, quote foreign text, keep provenance or split. Each side runs in a new process; the time begins when its
libraries are loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

WORDS = [
    *("the", "of", "quiet", "river", "table", "under", "light", "voice", "stone", "house", "never", "again", "small"),
    *("winter", "letter", "shadow", "green", "paper", "door", "music", "open", "street", "water", "morning", "glass"),
    *("other", "kind", "slow", "bright", "bread", "horse", "road", "window", "child", "hand", "night", "story"),
]
CHARACTERS = (
    "我你他们在有是的了不人这中大来上国个到说时要就出会可也对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么"
    "去法学如都同现当没动面起看定天分还进好小部其些主样理心本前开但因只从想实"
)


def groups(count: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """Yield rows like those of a ranking data set, about 1.5 KB each."""
    rng = random.Random(seed)

    def sentence(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high))).capitalize() + "."

    for _ in range(count):
        letters = "ABCD"[: rng.choice((2, 3, 4))]
        about = [
            f"**Translation {letter}**: {sentence(8, 16)} It renders the phrase as “{sentence(3, 5)}”"
            f" where {rng.choice(letters)} keeps the tone. A good point is the {rng.choice(WORDS)}."
            for letter in letters
        ]
        scores = [rng.randint(0, 10) for _ in letters]
        last = ", ".join(f"{letter}: {score}" for letter, score in zip(letters, scores, strict=True))
        yield {
            "src_text": "".join(rng.choices(CHARACTERS, k=rng.randint(20, 80))),
            "trg_text": sentence(10, 40),
            "src_lang": "zh",
            "trg_lang": "en",
            "mt_texts": [sentence(10, 40) for _ in letters],
            "analysis": "\n\n".join([*about, f"Overall, A is better than {letters[1]}.", last]),
            "scores": scores,
        }


def ours(source: str, out: str, form: str) -> tuple[float, int]:
    """Return seconds and rows of our job."""
    from rewardsmith.data.prepare.gqm import GqmRl, GqmSft  # noqa: PLC0415

    start = time.perf_counter()
    job = (GqmRl if form == "rl" else GqmSft)(input=source, out=Path(out), subgroups=4, shuffles=4)
    context: Any = SimpleNamespace(fresh=True, progress=lambda *_, **__: None)
    result = asyncio.run(job.run(context))
    return time.perf_counter() - start, int(result.metrics["rows"])


def unchecked(source: str, out: str, form: str) -> tuple[float, int]:
    """Return seconds and rows of the peer: everything in memory; letters of analyses are not renamed."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    start = time.perf_counter()
    rng = random.Random(114514)
    with Path(source).open(encoding="utf-8") as lines:
        given = [json.loads(line) for line in lines]
    rows = []
    for group in given:
        n = len(group["mt_texts"])
        parts = [part for size in range(2, n) for part in combinations(range(n), size)]
        rng.shuffle(parts)
        for picked in [tuple(range(n)), *parts[:4]]:
            orders = {picked}
            while len(orders) < min(5, [0, 1, 2, 6, 24][len(picked)]):
                orders.add(tuple(rng.sample(picked, len(picked))))
            rows += [unchecked_row(group, order, form) for order in orders]
    rng.shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), out)
    return time.perf_counter() - start, len(rows)


def unchecked_row(group: dict[str, list[str]], order: tuple[int, ...], form: str) -> dict[str, object]:
    """Return a row without any checks."""
    texts = [group["mt_texts"][i] for i in order]
    scores = {letter: group["scores"][i] for letter, i in zip("ABCD", order, strict=False)}
    shown = "\n\n".join(f"Translation {letter}:\n```\n{text}\n```" for letter, text in zip("ABCD", texts, strict=False))
    prompt = (
        f"Several translations of a text from Chinese into English follow. {'Compare them step by step. ' * 30}"
        f"\n\nSource text:\n```\n{group['src_text']}\n```\n\n{shown}"
    )
    asked = [{"role": "user", "content": prompt}]
    if form == "sft":
        best = sorted(scores, key=lambda letter: (-int(scores[letter]), letter))
        line = ", ".join(f"{letter}: {scores[letter]}" for letter in best)
        answer = f"{group['analysis']}\n\n### Final Ranking:\n\n{' > '.join(best)}\n\n### Scores:\n\n{line}\n"
        return {"messages": [*asked, {"role": "assistant", "content": answer}]}
    return {
        "data_source": "ranking",
        "prompt": asked,
        "ability": "ranking",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(scores)},
        "extra_info": {"src_lang": "zh", "trg_lang": "en", "mt_texts": texts, "order": list(order)},
    }


def measure(side: str, source: Path, form: str) -> dict[str, float]:
    """Return what one side needs, in a fresh process: seconds, rows, MB of memory, MB of output."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, __file__, "--child", side, str(source), f"{folder}/out.parquet", form]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def child(side: str, source: str, out: str, form: str) -> None:
    """Run one side and print what it needed."""
    import pyarrow.parquet  # noqa: F401, PLC0415 loaded before the time begins

    import rewardsmith.data.prepare.gqm  # noqa: F401, PLC0415

    before = sum(os.times()[:2])
    seconds, rows = (ours if side == "ours" else unchecked)(source, out, form)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": sum(os.times()[:2]) - before, "rows": rows, "peak": peak}))


def ranking_data(sizes: list[int], max_peer: int, form: str) -> None:
    """Print the table."""
    load = f"load {os.getloadavg()[0]:.1f}"
    table = Table(title=f"prepare gqm-{form}, 4 subgroups, 4 orders, JSON lines to Parquet; {load}")
    for name in ("side", "groups", "rows", "seconds", "CPU s", "rows/s", "peak MB"):
        table.add_column(name, justify="left" if name == "side" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            source = Path(folder) / f"{size}.jsonl"
            with source.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(group, ensure_ascii=False) + "\n" for group in groups(size))
            for side in ["ours", *(["in memory, unchecked"] if size <= max_peer else [])]:
                got = measure(side, source, form)
                speed = got["rows"] / got["seconds"]
                numbers = (f"{got['seconds']:.1f}", f"{got['cpu']:.1f}", f"{speed:,.0f}", f"{got['peak']:,.0f}")
                table.add_row(side, f"{size:,}", f"{got['rows']:,}", *numbers)
    Console(width=120).print(table)


def main() -> None:
    """Read the options and run."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000], help="groups in the input")
    parser.add_argument("--max-peer", type=int, default=100_000, help="groups up to which the peer is tried")
    parser.add_argument("--form", choices=["rl", "sft"], default="rl")
    options = parser.parse_args()
    ranking_data(options.rows, options.max_peer, options.form)


if __name__ == "__main__":
    main()
