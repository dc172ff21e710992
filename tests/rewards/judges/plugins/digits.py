"""A plug-in whose judge prints 1 or 0; a 0 anywhere wins."""


def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    return [f"{prompt}\n{response}" for prompt, response in zip(text_prompts, text_responses, strict=True)]


def rm_postprocess(results):
    scores = []
    for result in results:
        if "0" in result:
            scores.append(0)
        elif "1" in result:
            scores.append(1)
        else:
            raise ValueError(f"neither 0 nor 1 in {result!r}")
    return scores
