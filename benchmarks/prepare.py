"""Times the builder of ranking data, and shows that its memory does not grow with the data.

    python benchmarks/prepare.py [--rows 10000 100000] [--peer-most 100000] [--form rl] [--workers 1 2]

Synthetic groups of 2 to 4 candidates with an analysis, augmented with 4 subgroups and 4 orders each, to Parquet. Beside
it the same job the plain way, as GRRM's own script does it: rows in a list, prompts by an f-string, one shuffle, one
table. The plain way does not check rows, quote what is foreign, keep provenance or split. Each side runs in a fresh
process; the time begins when its libraries are loaded.
"""

from __future__ import annotations

import argparse
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

    def said(least: int, most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most))).capitalize() + "."

    for _ in range(count):
        letters = "ABCD"[: rng.choice((2, 3, 4))]
        about = [
            f"**Translation {letter}**: {said(8, 16)} It renders the phrase as “{said(3, 5)}”"
            f" where {rng.choice(letters)} keeps the tone. A good point is the {rng.choice(WORDS)}."
            for letter in letters
        ]
        scores = [rng.randint(0, 10) for _ in letters]
        last = ", ".join(f"{letter}: {score}" for letter, score in zip(letters, scores, strict=True))
        yield {
            "src_text": "".join(rng.choices(CHARACTERS, k=rng.randint(20, 80))),
            "trg_text": said(10, 40),
            "src_lang": "zh",
            "trg_lang": "en",
            "mt_texts": [said(10, 40) for _ in letters],
            "analysis": "\n\n".join([*about, f"Overall, A is better than {letters[1]}.", last]),
            "scores": scores,
        }


def ours(source: str, out: str, form: str, workers: int) -> tuple[float, int]:
    """Return seconds and rows of our builder."""
    from rewardsmith.data.gqm import GqmSettings, prepare_gqm  # noqa: PLC0415

    start = time.perf_counter()
    settings = GqmSettings(form=form, subgroups=4, shuffles=4)  # type: ignore[arg-type]
    prepared = prepare_gqm(source, out, settings, workers=workers)
    return time.perf_counter() - start, prepared.written


def plain(source: str, out: str, form: str, workers: int) -> tuple[float, int]:
    """Return seconds and rows of the plain way: everything in memory; letters of analyses are not renamed."""
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
            rows += [plain_row(group, order, form) for order in orders]
    rng.shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), out)
    return time.perf_counter() - start, len(rows)


def plain_row(group: dict[str, list[str]], order: tuple[int, ...], form: str) -> dict[str, object]:
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


def measure(side: str, source: Path, form: str, workers: int = 1) -> dict[str, float]:
    """Return what one side needs, in a fresh process: seconds, rows, MB of memory, MB of output."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, __file__, "--child", side, str(source), f"{folder}/out.parquet", form, str(workers)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def child(side: str, source: str, out: str, form: str, workers: str) -> None:
    """Run one side and print what it needed."""
    import pyarrow.parquet  # noqa: F401, PLC0415 loaded before the time begins

    import rewardsmith.data.gqm  # noqa: F401, PLC0415

    before = sum(os.times()[:4])
    seconds, rows = (ours if side == "ours" else plain)(source, out, form, int(workers))
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak, worker = (kilobytes / 1024 for kilobytes in peaks)
    written = Path(out).stat().st_size / 2**20
    cpu = sum(os.times()[:4]) - before
    print(
        json.dumps({"seconds": seconds, "cpu": cpu, "rows": rows, "peak": peak, "worker": worker, "written": written})
    )


def ranking_data(sizes: list[int], peer_most: int, form: str, workers: list[int]) -> None:
    """Print the table."""
    table = Table(
        title=f"prepare gqm-{form}, 4 subgroups, 4 orders, JSON lines to Parquet; load {os.getloadavg()[0]:.1f}"
    )
    for name in ("side", "groups", "rows", "seconds", "CPU s", "rows/s", "peak MB", "a worker's MB", "of the first"):
        table.add_column(name, justify="left" if name == "side" else "right")
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            source = Path(folder) / f"{size}.jsonl"
            with source.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(group, ensure_ascii=False) + "\n" for group in groups(size))
            sides = [(f"ours, {n} process{'es' if n > 1 else ''}", "ours", n) for n in workers]
            for name, side, count in [*sides, *([("plain, in memory", "plain", 1)] if size <= peer_most else [])]:
                got = measure(side, source, form, count)
                ratio = got["peak"] / first.setdefault(name, got["peak"])
                table.add_row(
                    *(name, f"{size:,}", f"{got['rows']:,}", f"{got['seconds']:.1f}", f"{got['cpu']:.1f}"),
                    *(
                        f"{got['rows'] / got['seconds']:,.0f}",
                        f"{got['peak']:,.0f}",
                        f"{got['worker']:,.0f}",
                        f"{ratio:.2f}x",
                    ),
                )
    Console(width=140).print(table)


def main() -> None:
    """Read the options and run."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000], help="groups in the input")
    parser.add_argument("--peer-most", type=int, default=100_000, help="groups up to which the plain way is tried")
    parser.add_argument("--form", choices=["rl", "sft"], default="rl")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="processes of our side")
    options = parser.parse_args()
    ranking_data(options.rows, options.peer_most, options.form, options.workers)


if __name__ == "__main__":
    main()
