"""Renders a few conversations with a chat template, in a process of its own with limits; run as a program.

    python -P template_probe.py SECONDS BYTES FOLDER…      # the limits, and the module search path

It reads `{"template": …, "arguments": {…}}` from standard input. Its exit status is 0 when everything was rendered, or
properly refused by the template; `MEMORY` or `SIZE` otherwise. The system kills a template that takes longer.
"""

import contextlib
import datetime
import json
import resource
import sys

MEMORY, SIZE = 3, 4

EXTRA, FACTOR = 1 << 20, 20  # a rendered text has at most `EXTRA` characters more than `FACTOR` times the messages


def main() -> None:
    """Probe the template."""
    seconds, memory, *sys.path[:] = sys.argv[1:]
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):  # not every system knows each of them
            resource.setrlimit(kind, (int(limit), int(limit)))
    import jinja2  # noqa: PLC0415 the search path is known only now
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class GenerationTag(Extension):
        """The tag that marks a response in templates for training."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):  # type: ignore[no-untyped-def]
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    task = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.datetime.now().strftime
    short = [{"role": role, "content": f"{role}?"} for role in ("system", "user", "assistant", "user")]
    long = [{"role": role, "content": "A word, and another one.\n" * 2000} for role in ("user", "assistant")]
    for messages in (short[1:2], short[1:3], short, short[1:3] * 20, long[:1], long):
        try:
            template = environment.from_string(task["template"])
            prompt = messages[-1]["role"] == "user"
            values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt}
            text = template.render(**values, **task["arguments"])
        except MemoryError:
            sys.exit(MEMORY)
        except Exception:  # noqa: BLE001 an unknown role, or a mistake: reported when a prompt is rendered
            continue
        if len(text) > EXTRA + FACTOR * sum(len(message["content"]) for message in messages):
            sys.exit(SIZE)


if __name__ == "__main__":
    main()
