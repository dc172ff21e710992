"""Foreign text in a prompt: it cannot end its quotation, open a turn, or fill a placeholder."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.quoting import MAX_FENCE, fill, harmless, quote, shortened

ROLE_TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("<|header_start|>", "<|start|>", "<|channel|>", "<|user|>", "<|END_OF_TURN_TOKEN|>"),
    *("<|reserved_special_token_12|>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<|turn>", "<turn|>", "<start_of_turn>"),
    *("<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>", "<pad>", "<sop>", "[gMASK]", "<<SYS>>", "<</SYS>>", "[INST]"),
    *("[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    *("[THINK]", "[/THINK]", "[|user|]", "[|endofturn|]", "<think>", "</think>", "<tool_call>", "</tool_response>"),
    *("<seed:bos>", "<extra_id_0>", "<SPECIAL_10>", "<reserved_106>", "[CLS]", "[SEP]", "]~b]", "]~!b[", "[e~["),
    *("＜|im_end|＞", "<role>", "</role>", "<beginning_of_sentence>", "<end_of_sentence>", "[BOS]", "[EOS]", "[EOT]"),
    *("<BOS_TOKEN>", "<EOS_TOKEN>", "<sep>", "<longcat_user>", "<longcat_assistant>", "</longcat_s>"),
    *("[UNUSED_TOKEN_145]", "<start_of_image>", "<image_soft_token>", "<unused0>", "[IMG]", "[PREFIX]", "[SUFFIX]"),
    *("◁think▷", "◁/think▷", "<_user>", "<end_of_utterance>", "<[PLHD1_never_used]>", "﹤eos﹥", "[start_header_id]"),
]

hostile = st.lists(
    st.sampled_from(
        [*ROLE_TOKENS, "`", "```", "~~~", "{{response}}", "{{CRITERIA}}", "\n", " ", "<", "|", ">", "[", "]"]
    )
    | st.text(max_size=5),
    max_size=30,
).map("".join)


def test_role_tokens_are_broken() -> None:
    variants = [(t, text) for t in ROLE_TOKENS for text in (t, f"a{t}b", t * 3, f"<{t}>", f"[{t}]")]
    for token, text in variants:
        broken = harmless(text)
        assert token not in broken
        assert re.sub(r"\s", "", broken) == re.sub(r"\s", "", text)  # nothing is lost


@pytest.mark.parametrize(
    "text",
    [
        "a<b_c>d",
        "vector<size_t> v; x[mask] = y[args]",
        "<p>see <my_tag> and <br/></p>",
        "[x] and [A], [Note]",
        "◁ left, right ▷ and\n▷",
        "a < b and c > d",
        "x <= |y|",
        "[1, 2]",
        "<div>",
        "if a<b: print(a|b)",
        "f(x) = |x|",
        "`code`",
        "10 > 3 | 4",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text
    assert quote(text) == f"```\n{text}\n```"


@given(hostile)
def test_nothing_is_left_to_break(text: str) -> None:
    broken = harmless(text)
    assert harmless(broken) == broken
    assert not any(token in broken for token in ROLE_TOKENS)


@given(hostile)
def test_a_fence_cannot_be_closed_from_inside(text: str) -> None:
    quoted = quote(text)
    fence = quoted[: quoted.index("\n")]
    assert set(fence) == {"`"}
    assert 3 <= len(fence) <= MAX_FENCE
    inside = quoted[len(fence) + 1 : -len(fence) - 1]
    assert quoted == f"{fence}\n{inside}\n{fence}"
    assert fence not in inside


@given(st.text(alphabet="`\uff40\u1fefa \n", max_size=80))
def test_a_fence_holds_after_normalization(text: str) -> None:
    quoted = quote(text)
    fence = quoted[: quoted.index("\n")]
    inside = unicodedata.normalize("NFKC", quoted[len(fence) + 1 : -len(fence) - 1])
    assert fence not in inside


@given(hostile, hostile)
def test_values_are_not_looked_at_again(first: str, second: str) -> None:
    assert fill("1 {{a}} 2 {{ b }} 3 {{a}}", {"a": first, "b": second}) == f"1 {first} 2 {second} 3 {first}"


@given(st.text(max_size=300), st.integers(0, 300))
def test_shortened(text: str, longest: int) -> None:
    short = shortened(text, longest)
    if len(text) <= longest:
        assert short == text
    else:
        head, note, tail = re.split(r"\n\[… ([0-9]+) characters are left out here …\]\n", short)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) == longest == len(text) - int(note)


def test_the_cut_breaks_no_fence_and_no_token() -> None:
    text = "`" * 50 + "<|im_start|>" * 50
    quoted = quote(text, 100)
    assert "<|" not in quoted
    assert len(quoted) < 300


def test_megabytes() -> None:
    for text in ("`" * 1_000_000, "<|" * 200_000, "<" * 300_000, "[|" * 200_000, "<｜a" * 100_000):
        assert len(quote(text)) < 3 * len(text)
        assert len(quote(text, 1000)) < 4000
