"""Tests of a program, parsed from the shapes of common data sets, and the comparison of outputs."""

from __future__ import annotations

import ast
import builtins
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewardsmith.sandbox.sandbox import BrokenTestsError, ProgramLimits, Sandbox
from rewardsmith.sandbox.values import close

SHAPES = (
    '{"inputs": […], "outputs": […]} with "fn_name" where a function is called, a list of {"input": …, "output": …},'
    ' a list of assert statements, or {"test": "def check(candidate): …", "entry_point": "…"}'
)


@dataclass(frozen=True)
class ScriptTests:
    """The program is run as a script: its inputs, and the outputs that are expected."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def __len__(self) -> int:
        return len(self.inputs)

    def open(self, program: str, limits: ProgramLimits, comparison: OutputComparison) -> Sandbox:
        """Return a sandbox for one program."""
        return Sandbox([program], limits)

    def passes(self, sandbox: Sandbox, index: int, comparison: OutputComparison) -> bool:
        """Compare the output; a program that ends with an error has failed, whatever it wrote."""
        outcome = sandbox.run(self.inputs[index])
        return not outcome.failed and comparison.same_output(outcome.result, self.outputs[index])


@dataclass(frozen=True)
class FunctionTests:
    """Tests that call functions of the program: test sources, or arguments with the values that are right.

    `table` is what `tester.py` reads, in a process out of the program's reach.
    """

    count: int
    table: Mapping[str, Any]

    def __len__(self) -> int:
        return self.count

    def open(self, program: str, limits: ProgramLimits, comparison: OutputComparison) -> Sandbox:
        """Return a sandbox with the program, and the tests out of its reach."""
        sources = [self.table.get("prompt", ""), program]
        return Sandbox(sources, limits, {**self.table, "tolerance": comparison.tolerance})

    def passes(self, sandbox: Sandbox, index: int, comparison: OutputComparison) -> bool:
        """Return whether the program passes a test; BrokenTestsError when no program could."""
        return sandbox.test(index)


Tests = ScriptTests | FunctionTests


def read_tests(given: object) -> Tests:
    """Return the tests in a value, which may be JSON text; BrokenTestsError if it has no known shape."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise BrokenTestsError(f"the tests are text, but not JSON ({error})") from None
    if isinstance(given, Mapping):
        return _read_table(given)
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise BrokenTestsError(f'there are no tests, neither as answer nor as info["tests"]: give {SHAPES}')
    if all(isinstance(entry, str) for entry in given):
        return _read_sources({"test_list": given})
    if all(isinstance(entry, Mapping) and "input" in entry and "output" in entry for entry in given):
        pairs = {"inputs": [entry["input"] for entry in given], "outputs": [entry["output"] for entry in given]}
        if any(entry.get("testtype") == "functional" and not entry.get("fn_name") for entry in given):
            raise BrokenTestsError('a test calls a function ("functional"), but fn_name is missing')
        return _read_table({**pairs, "fn_name": given[0].get("fn_name")})
    raise BrokenTestsError(f"these tests have no known shape: give {SHAPES}")


def _read_table(table: Mapping[str, Any]) -> Tests:
    if "test" in table or "test_list" in table:
        return _read_sources(table)
    inputs, outputs = (table.get(plural, table.get(plural[:-1])) for plural in ("inputs", "outputs"))
    if not _is_list(inputs) or not _is_list(outputs):
        raise BrokenTestsError(f"these tests have no known shape: give {SHAPES}")
    if not inputs or len(inputs) != len(outputs):
        raise BrokenTestsError(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
    name = table.get("fn_name")
    if not name:
        return ScriptTests([_joined(text) for text in inputs], [_joined(text) for text in outputs])
    if not isinstance(name, str):
        raise BrokenTestsError(f"fn_name is of type {type(name).__name__}: it must be text")
    calls = zip(map(_arguments, inputs), _right_values(inputs, outputs), strict=True)
    return FunctionTests(len(inputs), {"entry": name, "calls": list(calls)})


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _joined(value: Any) -> str:
    """Return text that some data sets keep as a list of lines."""
    if _is_list(value) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise BrokenTestsError(f"an input or output is of type {type(value).__name__}: it must be text")
    return value


def _arguments(value: Any) -> Any:
    """Return the arguments of a call: a list of them, or text with one JSON value in each line."""
    if isinstance(value, str):
        return [_json(line) for line in value.split("\n") if line.strip()]
    if not _is_list(value):
        raise BrokenTestsError(f"arguments are of type {type(value).__name__}: they must be a list")
    return value


def _right_values(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[list[Any]]:
    """Return for each call the values that count as right; more than one where the shape leaves it open."""
    read = [_json(o) if isinstance(i, str) and isinstance(o, str) else o for i, o in zip(inputs, outputs, strict=True)]
    # APPS keeps the value in a list of its own. Only where all outputs look like that can it be meant.
    if all(_is_list(value) and len(value) == 1 for value in read):
        return [[value, value[0]] for value in read]
    return [[value] for value in read]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenTestsError(f"an argument or output is not JSON ({error}): {text[:100]!r}") from None


def _read_sources(table: Mapping[str, Any]) -> FunctionTests:
    setup = "\n".join(_source(table.get(key) or "", key) for key in ("test_imports", "test_setup_code"))
    prompt: Any = ""
    entry: Any = ""
    if "test" not in table:
        if not _is_list(table["test_list"]) or not table["test_list"]:
            raise BrokenTestsError("test_list has no entries: give a list of assert statements")
        sources = [_source(source, "a test") for source in table["test_list"]]
    else:
        sources, prompt, entry = [_source(table["test"], "test")], table.get("prompt") or "", table.get("entry_point")
        if not isinstance(entry, str) or not entry.isidentifier():
            raise BrokenTestsError(f"entry_point is {entry!r}: give the name of the function that is tested")
        if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in _parse(sources[0]).body):
            raise BrokenTestsError("test defines no function check(candidate)")
    names, modules = names_used(sources, setup, _source(prompt, "prompt"), entry)
    tests = {"sources": sources, "setup": setup, "prompt": prompt, "entry": entry}
    return FunctionTests(len(sources), tests | {"names": sorted(names), "modules": sorted(modules)})


def _source(value: Any, what: str) -> str:
    if _is_list(value) and what == "test_imports":
        value = "\n".join(map(str, value))
    if not isinstance(value, str):
        raise BrokenTestsError(f"{what} is of type {type(value).__name__}: it must be Python source")
    return value


def names_used(sources: Sequence[str], setup: str = "", prompt: str = "", entry: str = "") -> tuple[set[str], set[str]]:
    """Return the names that test sources take from the program, and the modules that they use without an import.

    With an entry point, it alone comes from the program. Without, all names that nobody else defines do. A program may
    bear the name of a built-in function (`sum`): such a name is the program's only where the tests use no other unknown
    name and every test calls it; otherwise a program could redefine the `abs` or `all` of its own tests.
    """
    tests = [[*ast.walk(_parse(source))] for source in sources]
    nodes = [*(node for test in tests for node in test), *ast.walk(_parse(setup))]
    others = [*ast.walk(_parse(prompt))]
    _require_library([*nodes, *others])
    bound = {name for node in (*nodes, *others) for name in _bound(node)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    missing = used - bound - set(dir(builtins)) - {entry}
    dotted = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    bare = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in dotted}
    modules = missing & sys.stdlib_module_names - bare  # used as `name.attribute` alone
    missing -= modules
    if entry and missing and "*" not in bound:
        raise BrokenTestsError(
            f"they use {min(missing)!r}, which neither they nor the prompt define, and of the program they get"
            f' {entry!r} alone: give the source that defines it as "prompt" or "test_setup_code"'
        )
    names = {entry} if entry else missing or {_built_in(tests, bound)}
    _require_data(nodes, names)
    return names, modules


def _built_in(tests: Sequence[Sequence[ast.AST]], bound: set[str]) -> str:
    """Return the name of a built-in function that the program redefines: the only one that every test calls."""
    called: set[str] = set.intersection(*({node.func.id for node in _calls(nodes)} for nodes in tests)) - bound
    if len(called) != 1:
        raise BrokenTestsError(
            f"every test calls {' and '.join(sorted(called))}, and one of them must be the program's: give"
            ' {"fn_name": …} or {"test": …, "entry_point": …}, which name it'
            if called
            else "they use nothing that a program could define: every program would pass, or none"
        )
    return called.pop()


def _calls(nodes: Sequence[ast.AST]) -> Iterator[Any]:
    """Yield the calls of a function by its name."""
    return (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))


def _require_data(nodes: Sequence[ast.AST], of_program: set[str]) -> None:
    """Raise BrokenTestsError where a call in the tests hands the program what cannot be sent to its process.

    A test that finds out when it runs does so for those programs alone that get so far.
    """
    checks = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args]
    names = of_program | {check.args.args[0].arg for check in checks}
    for call in _calls(nodes):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if call.func.id in names and isinstance(argument, ast.Lambda | ast.GeneratorExp):
                kind = "function" if isinstance(argument, ast.Lambda) else "generator"
                raise BrokenTestsError(f"they pass the program a {kind}, which cannot be sent to its process")


def _require_library(nodes: Sequence[ast.AST]) -> None:
    """Raise BrokenTestsError where tests import what the sandbox does not have: every program would fail them."""
    for node in nodes:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module.split(".")[0] not in sys.stdlib_module_names:
                raise BrokenTestsError(f"they import {module!r}, and the sandbox has the standard library alone")


def _bound(node: ast.AST) -> list[str]:
    """Return the names that a node of a test defines."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).split(".")[0]]
    return [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []


def _parse(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on doubtful escapes; the source is not ours
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BrokenTestsError(f"a test is not valid Python ({error}): {source[:100]!r}") from None


# ---- comparison of outputs -------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,4})?")


@dataclass(frozen=True)
class OutputComparison:
    """Whether what a program wrote or returned is what was expected. No step is slower than linear.

    Attributes:
        whitespace: "tokens" compares the words, wherever lines break; "lines" compares line by line, without the white
            space at the end of each and of the whole.
        tolerance: how far a number may be from the expected one, relative to it or to 1, whichever is larger.
    """

    whitespace: Literal["tokens", "lines"] = "tokens"
    tolerance: float = 0.0

    def same_output(self, got: bytes, expected: str) -> bool:
        """Return whether what was written is what was expected."""
        text = got.decode("utf-8", "replace")
        if self.whitespace == "tokens":
            return self._same_words(text.split(), expected.split())
        lines, right = ([line.rstrip() for line in each.rstrip().split("\n")] for each in (text, expected))
        if lines == right or not self.tolerance or len(lines) != len(right):
            return lines == right
        return all(self._same_words(a.split(), b.split()) for a, b in zip(lines, right, strict=True))

    def _same_words(self, words: list[str], right: list[str]) -> bool:
        if words == right or not self.tolerance or len(words) != len(right):
            return words == right
        return all(
            a == b or (_NUMBER.fullmatch(a) and _NUMBER.fullmatch(b) and close(float(a), float(b), self.tolerance))
            for a, b in zip(words, right, strict=True)
        )
