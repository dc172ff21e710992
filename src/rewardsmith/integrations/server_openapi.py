"""The OpenAPI document of the reward server, and a page that shows it without loading anything else."""

from __future__ import annotations

import json
from html import escape
from typing import Any, get_args

from rewardsmith import __version__
from rewardsmith.types import FailureKind

MESSAGES = [{"role": "user", "content": "How much is 6 · 7?"}]
GROUP = {"prompt": "How much is 6 · 7?", "answer": "42", "responses": ["It is \\boxed{42}.", "I do not know."]}
PROMPT = {"id": "p1", "messages": MESSAGES, "source": "arithmetic", "answer": "42", "info": {}}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/score": {
        "one group": GROUP,
        "several groups": {
            "groups": [{**GROUP, "prompt": MESSAGES}, {"prompt": PROMPT, "responses": ["\\boxed{42}"]}],
            "deadline": 60,
        },
        "rollouts with tokens": {"prompt": PROMPT, "rollouts": [{"text": "\\boxed{42}", "tokens": [5, 7]}]},
    },
    "/get_reward": {
        "one sample": {
            "query": ["<|im_start|>user\n6 · 7?<|im_end|>\n<|im_start|>assistant\n\\boxed{42}<|im_end|>"],
            "prompts": ["<|im_start|>user\n6 · 7?<|im_end|>\n<|im_start|>assistant\n"],
            "labels": ["42"],
        }
    },
    "/verify": {
        "one rollout": {
            "responses_create_params": {"input": MESSAGES},
            "response": {
                "id": "r",
                "output": [
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "\\boxed{42}", "annotations": []}],
                    }
                ],
            },
            "expected_answer": "42",
        }
    },
    "/seed_session": {"empty": {}},
    "/aggregate_metrics": {"two rows": {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}, {"reward": 0.0}]}},
}
"""Bodies that the server accepts, by path and name."""

ABOUT = {
    "/score": ("Score groups", "All answers to one prompt are a group: rewards that compare answers need all of them."),
    "/get_reward": (
        "OpenRLHF's remote reward",
        "The answer is the query without its prompt and end tokens. A failure of any sample is status 503.",
    ),
    "/verify": ("NeMo Gym: verify", "One rollout. A failure is status 503, never a reward of 0."),
    "/seed_session": ("NeMo Gym: seed a session", "There is no state: the reply is empty."),
    "/aggregate_metrics": ("NeMo Gym: statistics of verify responses", "Rows with _ng_failure_class are left out."),
    "/ready": ("Readiness", "200 once the check of the reward has passed; 503 before, and while the server drains."),
    "/health": ("Liveness", "200 while the process runs. No token is needed."),
    "/reverify_mode": ("NeMo Gym: reverify mode", "Scores depend on the request alone: stateless."),
    "/metrics": ("Prometheus metrics", "Of all processes, each with its label."),
    "/openapi.json": ("This document", ""),
    "/docs": ("This document as a page", ""),
}

STATUS = {
    "400": "The body is not what is expected; the message names the field.",
    "401": "The token is missing or wrong.",
    "408": "The body did not arrive in time.",
    "413": "The body, or the number of answers, is too large.",
    "415": "The body is not declared as application/json, or is compressed.",
    "429": "Too many answers are being scored; Retry-After has the seconds to wait.",
    "503": "The reward is not ready, has stopped, or could not score an answer where the form has no place for that.",
}


def openapi(title: str) -> dict[str, Any]:
    """Return the document; `title` names the reward."""
    paths: dict[str, Any] = {}
    for path, (summary, about) in ABOUT.items():
        operation: dict[str, Any] = {
            "summary": summary,
            "description": about,
            "operationId": path.strip("/").replace(".", "_"),
            "responses": {"200": _success(path)},
        }
        if path in EXAMPLES:
            examples = {name: {"value": value} for name, value in EXAMPLES[path].items()}
            content = {"schema": _request_schema(path), "examples": examples}
            operation["requestBody"] = {"required": True, "content": {"application/json": content}}
            operation["responses"] |= {code: _error(text) for code, text in STATUS.items()}
        elif path == "/ready":
            operation["responses"]["503"] = _error(STATUS["503"])
        if path in ("/health", "/ready"):
            operation["security"] = []
        paths[path] = {"post" if path in EXAMPLES else "get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"rewardsmith: {title}", "version": __version__},
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": SCHEMAS,
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _request_schema(path: str) -> dict[str, Any]:
    if path == "/score":
        return {"oneOf": [_ref("Group"), _ref("Groups")]}
    return _ref({"/get_reward": "OpenRlhfRequest", "/verify": "VerifyRequest"}.get(path, "Anything"))


def _success(path: str) -> dict[str, Any]:
    if path == "/score":
        schema: dict[str, Any] = {"oneOf": [_ref("ScoredGroup"), _ref("ScoredGroups")]}
    else:
        schema = _ref({"/get_reward": "OpenRlhfReply", "/verify": "VerifyReply"}.get(path, "Anything"))
    kind = {"/metrics": "text/plain", "/docs": "text/html"}.get(path, "application/json")
    return {"description": "OK", "content": {kind: {"schema": schema if kind == "application/json" else _TEXT}}}


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _ref("Error")}}}


_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_NUMBERS: dict[str, Any] = {"type": ["number", "array"]}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(required: str = "", closed: Any = True, /, **properties: Any) -> dict[str, Any]:
    extra = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": required.split(), **extra}


_ARRAY_DATA = {"description": 'a list of numbers, or base64 such as {"int32": "AQAAAA=="}', "type": ["array", "object"]}
_AROUND: dict[str, Any] = {"id": _TEXT, "source": _TEXT, "answer": {}, "info": {"type": "object"}}

SCHEMAS: dict[str, Any] = {
    "Anything": {},
    "Message": _object("role content", role=_TEXT, content=_TEXT),
    "Prompt": _object("messages", messages=_array(_ref("Message")), **_AROUND),
    "Rollout": _object(
        "text", text=_TEXT, tokens=_ARRAY_DATA, logprobs=_ARRAY_DATA, ends={"type": ["array", "object", "null"]},
        stop_reason={"enum": ["stop", "length"]},
    ),
    "Group": _object(
        "prompt",
        prompt={"oneOf": [_TEXT, _array(_ref("Message")), _ref("Prompt")]},
        responses=_array(_TEXT), rollouts=_array(_ref("Rollout")), policy_version={"type": "integer"},
        deadline=_NUMBER, **_AROUND,
    ),
    "Groups": _object("groups", groups=_array(_ref("Group")), deadline=_NUMBER),
    "Failure": _object(
        "kind detail attempts", kind={"enum": list(get_args(FailureKind))}, detail=_TEXT, attempts={"type": "integer"}
    ),
    "Score": _object(
        "value failure parts feedback label",
        value={"type": ["number", "null"]},
        failure={"oneOf": [_ref("Failure"), {"type": "null"}]},
        parts={"type": "object", "additionalProperties": _ref("Score")},
        feedback=_TEXT, label=_TEXT, token_values={"type": "object"}, token_support={"type": "object"},
    ),
    "ScoredGroup": _object("id scores", id=_TEXT, scores=_array(_ref("Score"))),
    "ScoredGroups": _object("groups", groups=_array(_ref("ScoredGroup"))),
    "OpenRlhfRequest": _object(
        "query prompts", False, query=_array(_TEXT), prompts=_array(_TEXT), labels=_array({})
    ),
    "OpenRlhfReply": _object(
        "rewards scores extra_logs", rewards=_NUMBERS, scores=_NUMBERS, extra_logs={"type": "object"}
    ),
    "VerifyRequest": _object(
        "responses_create_params response", False, responses_create_params={"type": "object"},
        response={"type": "object"},
    ),
    "VerifyReply": _object(
        "responses_create_params response reward", False, reward=_NUMBER, reward_components={"type": "object"},
        responses_create_params={"type": "object"}, response={"type": "object"},
    ),
    "Error": _object("error", error=_object("kind message", False, kind=_TEXT, message=_TEXT)),
}  # fmt: skip


def page(document: dict[str, Any]) -> str:
    """Return the document as one page of HTML."""
    sections = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            examples = "".join(
                f"<h3>{escape(name)}</h3><pre>{escape(json.dumps(one['value'], indent=2, ensure_ascii=False))}</pre>"
                for name, one in content.get("examples", {}).items()
            )
            codes = "".join(
                f"<tr><td>{code}</td><td>{escape(one['description'])}</td></tr>"
                for code, one in operation["responses"].items()
            )
            sections.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}."
                f" {escape(operation['description'])}</p>{examples}<table>{codes}</table>"
            )
    title = escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><style>body{font:16px/1.5 system-ui;max-width:50rem;'
        "margin:2rem auto;padding:0 1rem;color-scheme:light dark}pre{overflow-x:auto;padding:.7rem;border:1px solid"
        " #8886;border-radius:6px}td{padding:.1rem .8rem .1rem 0;vertical-align:top}h3{font-size:1rem}</style>"
        f"<h1>{title}</h1><p>Version {escape(document['info']['version'])}. The same for programs:"
        f' <a href="openapi.json">openapi.json</a></p>{"".join(sections)}</html>'
    )
