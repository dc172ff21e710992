"""A reward function as verl's documentation shows one: a rule for a data set, with a bonus from the launch script."""

import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None, format_bonus=0.0):
    if data_source != "openai/gsm8k":
        raise NotImplementedError(f"reward function is not implemented for {data_source=}")
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
    if not found:
        return 0.0
    answer = found[-1].replace(",", "")
    score = 1.0 if answer == ground_truth else format_bonus
    return {"score": score, "acc": answer == ground_truth, "pred": answer, "index": extra_info["index"]}


async def waits(data_source, solution_str, ground_truth, extra_info=None):
    import asyncio

    await asyncio.sleep(0.01)
    return float(ground_truth in solution_str)
