"""The split: which sources are held out depends on their texts alone, and is the same in all commands."""

import json
from pathlib import Path

from rewardsmith.data.prepare.gqm import GqmRl
from rewardsmith.data.prepare.preference_data import PreferencesJob
from rewardsmith.data.prepare.prepare_job import KEYS, held_out_limit, source_key
from tests.data.prepare.jobs import read_rows, run_job, write_rows


def test_a_number_of_sources_holds_out_those_with_the_smallest_keys_and_a_share_a_share() -> None:
    keys = [source_key(f"text {i}") for i in range(100)]
    limit = held_out_limit(10, keys * 2)
    assert {key for key in keys if key < limit} == set(sorted(keys)[:10])
    assert {key for key in keys if key < held_out_limit(500, keys)} == set(keys)
    assert held_out_limit(3, []) == 0
    assert held_out_limit(0.5, []) == KEYS // 2
    assert abs(sum(key < KEYS // 2 for key in keys) - 50) < 20


def test_case_width_and_white_space_play_no_part() -> None:
    assert source_key(" ＡB\n c") == source_key("ab C") != source_key("a bc")


def test_all_commands_hold_out_the_same_sources(tmp_path: Path) -> None:
    rows = [
        {"src_text": f"source {i}", "src_lang": "de", "trg_lang": "en", "mt_texts": ["a", "b"], "scores": [1, 2]}
        for i in range(30)
    ]
    source = str(write_rows(tmp_path / "groups.jsonl", rows))
    held = []
    for name, job in (("gqm", GqmRl), ("pairs", PreferencesJob)):
        out = tmp_path / f"{name}-test.jsonl"
        run_job(job(input=source, out=tmp_path / f"{name}.jsonl", held_out=0.3, held_out_file=out, seed=len(held)))
        text = json.dumps(read_rows(out))
        held.append({i for i in range(30) if f"source {i}\\n" in text or f'source {i}"' in text})
    assert held[0] == held[1] == {i for i in range(30) if source_key(f"source {i}") < 0.3 * KEYS}
    assert 0 < len(held[0]) < 30
