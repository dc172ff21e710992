"""Renders a few conversations by a chat template, in a process of its own with limits; run as a program.

    python -P template_probe.py SECONDS BYTES FOLDER…      # what it may use, and where modules are found

It reads JSON from its standard input: `{"template": …, "arguments": {…}}`. It ends with status 0 when all was rendered,
or refused by the template in a proper way, and with `MEMORY` or `SIZE` when it was not. A template that takes longer is
killed by the system.
"""

import contextlib
import datetime
import json
import resource
import sys

MEMORY, SIZE = 3, 4

EXTRA, FACTOR = 1 << 20, 20
"""A rendered text has at most `EXTRA` characters more than `FACTOR` times the messages."""


def main() -> None:
    """Probe the template."""
    seconds, memory, *sys.path[:] = sys.argv[1:]
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):  # not every system knows each of them
            resource.setrlimit(kind, (int(limit), int(limit)))
    import jinja2  # noqa: PLC0415 only now it is known where it is
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """The tag that marks an answer in templates for training."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):  # type: ignore[no-untyped-def]
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    given = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.datetime.now().strftime
    for messages, prompt in conversations():
        try:
            template = environment.from_string(given["template"])
            values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt}
            text = template.render(**values, **given["arguments"])
        except MemoryError:
            sys.exit(MEMORY)
        except Exception:  # noqa: BLE001 a role that it does not know, or a mistake: who renders a prompt sees it
            continue
        if len(text) > EXTRA + FACTOR * sum(len(message["content"]) for message in messages):
            sys.exit(SIZE)


def conversations() -> list[tuple[list[dict[str, str]], bool]]:
    """Return some of each kind: messages, and whether an answer follows."""
    short = [{"role": role, "content": f"{role}?"} for role in ("system", "user", "assistant", "user")]
    long = [{"role": role, "content": "A word, and another one.\n" * 2000} for role in ("user", "assistant")]
    return [
        (short[1:2], True),
        (short[1:3], False),
        (short, True),
        (short[1:3] * 20, False),
        (long[:1], True),
        (long, False),
    ]


if __name__ == "__main__":
    main()
