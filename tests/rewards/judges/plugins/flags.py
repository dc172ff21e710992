"""A plug-in that judges a field of a JSON answer by flags of 0 and 1; it knows nothing of us."""

import json
import re

FAULTS = ("accuracy", "information error")
HARM = ("harmful",)


def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    made = []
    for prompt, response in zip(text_prompts, text_responses):  # noqa: B905
        inner = response[response.index("{") : response.rindex("}") + 1]  # a response without braces raises
        text = prompt.replace("{response}", json.loads(inner)["Response"])
        if tgt_tokenizer is None or not tgt_tokenizer.chat_template:
            made.append(f"User: \n{text}\nAssistant: \n")
        else:
            turns = [{"role": "user", "content": text}]
            made.append(tgt_tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    return made


def _mended(text):
    text = text.replace("“", '"').replace("”", '"').replace("\\", "")
    return re.sub(r"([{,]\s*)([A-Za-z_ ]+)(\s*:)", r'\1"\2"\3', text)


def _value(result):
    found = re.findall(r"\{[^{}]*\}", result.split("</think>", 1)[-1])
    if not found:
        return 0
    try:
        flags = json.loads(found[-1])
    except ValueError:
        try:
            flags = json.loads(_mended(found[-1]))
        except ValueError:
            return -1
    if any(word in key for key in flags for word in FAULTS):
        return 0
    if any(word in key for key in flags for word in HARM):
        return -1
    if all(value in (0, 1) for value in flags.values()):
        return sum(flags.values()) / len(flags)
    return 0


def rm_postprocess(results):
    return [_value(result) for result in results]
