"""`generate`, a stage and a command: sample answers to prompts, and write them to a file that other jobs read.

The file has one line for each prompt, a `RolloutGroup` as in `records.py`. What is written stays: after a stop or a
kill the same job continues with the prompts that are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rewardsmith import __version__
from rewardsmith.config import Chosen, Refers
from rewardsmith.console import Columns, Table
from rewardsmith.data.prepare.model_calls import MAX_STREAK, REPLIED
from rewardsmith.data.prepare.prepare_job import OutFile, digest_of
from rewardsmith.data.row_sources import RowSource
from rewardsmith.data.rows import MAX_LISTED, MAX_SHOWN, printable
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, Result
from rewardsmith.llm import Asker, ChatReply, ChatRequest, ModelCallError, RequestSettings, settle
from rewardsmith.records import dumps, from_json
from rewardsmith.storage import ResumableJsonl, differences
from rewardsmith.trainers.evaluate.scorer import run_in_order
from rewardsmith.trainers.settings import DataName
from rewardsmith.trainers.trainer import Count, derive, held_out
from rewardsmith.types import Prompt, Rollout, RolloutGroup

DEFAULT_PROMPTS = 512
"""Prompts of a built-in world, which has no end."""

GENERATED = "generated"
"""The folder of a run with the files of its `generate` stages."""

DECISIVE = ("sampling", "rollouts_per_prompt", "seed", "identity")
"""What the answers in a file depend on, apart from the prompts."""

NOT_SERVED = {"top_k": "top_k", "min_tokens": "min_tokens", "stop_tokens": "stop_token_ids"}
"""Sampling settings that the protocol of servers has not, and what vLLM and SGLang call them in a request."""

Keep = Callable[[int, RolloutGroup | ModelCallError], None]
"""Called with the number of each prompt, in order, and its answers or why there are none."""


class GenerateStage(Job):
    """Sample answers to prompts, and write them to `generated/NAME.jsonl` in the run folder."""

    rare: ClassVar[frozenset[str]] = frozenset({"concurrency", "deadline", "wait"})

    name: str = Field(default="generate", min_length=1, description="name of this stage in the run's files")
    model: Annotated[str, Refers("models", offer="write"), Field(description="the model that writes")]
    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    prompts: Count | None = Field(
        default=None, description=f"how many, or all; not set: all of a file, {DEFAULT_PROMPTS} of another source"
    )
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt")
    sampling: Sampling = Field(default=Sampling(), description="how answers are sampled")
    concurrency: int = Field(default=64, ge=1, description="of a served model: prompts in flight at the same time")
    deadline: float = Field(default=600.0, gt=0, description="of a served model: seconds for one answer")
    wait: float = Field(default=300.0, ge=0, description="seconds to wait for an unreachable server")

    def results_file(self, folder: Path) -> ResumableJsonl:
        """Return the file of the answers."""
        file = folder / GENERATED / f"{self.name}.jsonl"
        return ResumableJsonl(file, remedy=f"remove {str(file)!r}, or give the stage another name")

    def require_fit(self, table: Chosen) -> None:
        """Raise a `UserError` if the model with this table cannot sample as the settings say."""
        if isinstance(table.settings, ModelSettings):
            return
        for name, theirs in NOT_SERVED.items():
            if value := getattr(self.sampling, name):
                shown = list(value) if isinstance(value, tuple) else value
                raise UserError(
                    f"sampling.{name} is {shown}: not every server has it, so it is not sent. Set models.{self.model}"
                    f".body = {{ {theirs} = {shown} }} where the server takes it (vLLM and SGLang do), and leave it out"
                    " here"
                )

    async def run(self, context: Any) -> Result:
        """Write the answers that are missing; needs `engine` and `on_device` of a context for an embedded model."""
        table = context.model_tables[self.model]
        self.require_fit(table)
        prompts = self._prompts(context)
        results = self.results_file(context.folder)
        note = {
            "command": "generate", "rewardsmith": __version__, "model": self.model, "data": self.data,
            "rollouts_per_prompt": self.rollouts_per_prompt, "seed": context.seed,
            "sampling": self.sampling.model_dump(mode="json"),
        }  # fmt: skip
        with results.open(fresh=context.fresh):
            results.check(note, _differences)
            tally = AnswerTally()
            missing = tally.read(results, prompts)

            def keep(i: int, group: RolloutGroup | ModelCallError) -> None:
                if isinstance(group, RolloutGroup):
                    results.append(dumps(group))
                tally.add(prompts[i], group)

            if missing:
                write = self._write_embedded if isinstance(table.settings, ModelSettings) else self._write_served
                await write(context, prompts, missing, keep, lambda who: results.claim(note | who, _differences))
        return tally.result(results.file)

    def _prompts(self, context: Any) -> list[Prompt]:
        source = context.source(self.data)
        if hasattr(source, "check"):
            source.check(of="prompts")
        default: Count = "all" if isinstance(source, RowSource) else DEFAULT_PROMPTS
        return held_out(source.prompts, default if self.prompts is None else self.prompts, self.data)

    async def _write_embedded(
        self,
        context: Any,
        prompts: Sequence[Prompt],
        missing: Sequence[int],
        keep: Keep,
        claim: Callable[[dict[str, str]], None],
    ) -> None:
        """Write with an engine, which batches the prompts itself; a group waits for those before it."""
        engine = context.engine(self.model)
        engine.require_chat_template()
        claim({"identity": f"embedded:{engine.digest()}"})
        room = engine.max_length - self.sampling.max_tokens
        lengths = {i: len(engine.encode(prompts[i])) for i in missing}
        fitting = [i for i in missing if lengths[i] <= room]
        if not fitting:
            raise UserError(
                f"none of {len(missing)} prompts leaves room for max_tokens = {self.sampling.max_tokens} in the"
                f" {engine.max_length} positions of models.{self.model}: lower max_tokens"
            )
        n, before = self.rollouts_per_prompt, len(prompts) - len(missing)

        def tick(answers: int, tokens: int) -> None:
            context.progress("writing", before * n + answers, len(prompts) * n, unit="answers", tokens=tokens)
            context.pause()

        ready: dict[int, RolloutGroup] = {}
        waiting = iter(missing)
        seeds = [derive(context.seed, "generate", i) for i in fitting]
        tick(0, 0)
        async with context.on_device(self.model):
            chosen = [prompts[i] for i in fitting]
            following = next(waiting, None)
            async for at, group in engine.generate(chosen, self.sampling, n=n, seeds=seeds, tick=tick):
                ready[fitting[at]] = group
                while following is not None and (following in ready or lengths[following] > room):
                    if following in ready:
                        keep(following, ready.pop(following))
                    else:
                        detail = f"its {lengths[following]} tokens leave no room for max_tokens"
                        keep(following, ModelCallError("refused", detail))
                    following = next(waiting, None)

    async def _write_served(
        self,
        context: Any,
        prompts: Sequence[Prompt],
        missing: Sequence[int],
        keep: Keep,
        claim: Callable[[dict[str, str]], None],
    ) -> None:
        """Write with a server: each answer is a request with a seed of its own, past the verdict cache."""
        model = context.model(self.model)
        model = getattr(model, "uncached", model)
        try:
            await model.check()
            claim({"identity": str(await model.identity())})
        except ModelCallError as error:
            raise UserError(f"models.{self.model} cannot be called ({error.kind}): {error}") from None
        asker = Asker(model, RequestSettings(), wait=self.wait, log=context.log)
        n, sampling = self.rollouts_per_prompt, self.sampling
        answers, tokens, streak = (len(prompts) - len(missing)) * n, 0, 0

        async def answer(i: int, number: int) -> ChatReply:
            nonlocal answers, tokens
            request = ChatRequest(
                prompts[i].messages,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                stop=sampling.stop,
                seed=derive(context.seed, "generate", i, number) % 2**31,  # servers take seeds below 2^31
                attempt=number,
                deadline=self.deadline,
            )
            reply = await asker.send(request)
            answers, tokens = answers + 1, tokens + reply.tokens
            context.progress("writing", answers, len(prompts) * n, unit="answers", tokens=tokens)
            return reply

        async def group_of(i: int) -> RolloutGroup | ModelCallError:
            replies = await settle(answer(i, number) for number in range(n))
            for error in replies:
                if isinstance(error, ModelCallError):
                    return error
                if isinstance(error, Exception):
                    raise error
            return RolloutGroup(prompts[i], [_rollout(reply) for reply in replies if isinstance(reply, ChatReply)])

        def keep_or_stop(i: int, group: RolloutGroup | ModelCallError) -> None:
            nonlocal streak
            keep(i, group)
            replied = isinstance(group, RolloutGroup) or group.kind in REPLIED
            streak = 0 if replied else streak + 1
            if isinstance(group, ModelCallError) and (group.kind == "unreachable" or streak >= MAX_STREAK):
                raise UserError(
                    f"models.{self.model}: {streak} prompts in a row without answers, the last ({group.kind}):"
                    f" {printable(str(group), 300)}\nThe same command continues with what is written"
                )

        await run_in_order(missing, group_of, keep_or_stop, concurrency=self.concurrency, pause=context.pause)


class GenerateAnswers(GenerateStage):
    """Sample answers to prompts with any model, and write them to a file.

    DATA are prompts: a JSONL or Parquet file, or the data of a recipe. OUT is JSON lines, one group of answers for each
    prompt, in the order of the data; `score`, `evaluate-policy` and `prepare` read it. After Ctrl-C or a crash the same
    command continues; with more --prompts it goes on after the first ones.

    Eight answers each of the model that a run has trained:

    `rewardsmith generate recipe.toml:train solved.jsonl --model runs/rrm --rollouts-per-prompt 8 --max-tokens 2048`

    With a running server, vLLM or any other:

    `rewardsmith generate problems.parquet solved.jsonl --model http://localhost:8000/v1 --temperature 0.7`

    Then score them, measure the policy, or make training data for a judge:

    `rewardsmith score solved.jsonl --reward recipe.toml:policy`

    `rewardsmith evaluate-policy solved.jsonl --reward recipe.toml:policy`

    `rewardsmith prepare graded solved.jsonl graded.jsonl --teacher http://localhost:8001/v1`
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "out")
    keeps_ids: ClassVar[bool] = True

    out: OutFile = Field(description="output file: JSON lines; the same command resumes")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of all draws")

    def results_file(self, folder: Path) -> ResumableJsonl:
        """Return the file of the answers."""
        out = self.out.expanduser()
        if out.is_dir() or out.suffix.lower() not in (".jsonl", ".ndjson"):
            raise UserError(f"OUT {str(out)!r}: answers are written as JSON lines; name a .jsonl file")
        return ResumableJsonl(out)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    known = [name for name in DECISIVE if name in now]
    return differences({name: before.get(name) for name in known}, {name: now[name] for name in known})


def _rollout(reply: ChatReply) -> Rollout:
    """Return a reply as the model wrote it: where a server separates the thought, it stands before the answer."""
    text = f"<think>\n{reply.thought}\n</think>\n\n{reply.text}" if reply.thought else reply.text
    return Rollout(text, stop_reason="length" if reply.truncated else "stop")


def _key(prompt: Prompt) -> str:
    return digest_of(dumps(prompt))


class AnswerTally:
    """Counts groups as they are written, those of an earlier start included."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []

    def read(self, results: ResumableJsonl, prompts: Sequence[Prompt]) -> list[int]:
        """Count the groups of a file, and return the numbers of the prompts that have none yet."""
        found: Counter[str] = Counter()
        for _, entry in results.entries():
            group = from_json(RolloutGroup, entry)
            found[_key(group.prompt)] += 1
            self.add(group.prompt, group)
        self.counts["resumed"] = self.counts["prompts"]
        missing = []
        for i, prompt in enumerate(prompts):
            key = _key(prompt)
            if found[key]:
                found[key] -= 1
            else:
                missing.append(i)
        if others := found.total():
            raise UserError(
                f"{str(results.file)!r} has answers to {others:,} prompts that are not among the {len(prompts):,} of"
                " this job: the data has changed, or prompts is lower than before. Use --fresh to start again, or name"
                " another output"
            )
        return missing

    def add(self, prompt: Prompt, group: RolloutGroup | ModelCallError) -> None:
        """Count the answers to a prompt, or why there are none."""
        self.counts["prompts"] += 1
        if isinstance(group, ModelCallError):
            failure = {"prompt": prompt.id, "kind": group.kind, "detail": printable(str(group), 300)}
            self.failures.append(failure)
            return
        for rollout in group.rollouts:
            known = len(rollout.tokens)  # a server gives no tokens
            truncated, blank = rollout.stop_reason == "length", not rollout.text.strip()
            self.counts.update(answers=1, tokens=known, counted=known > 0, truncated=truncated, blank=blank)

    def result(self, file: Path) -> Result:
        """Return the counts as a table and as metrics."""
        counts, failed = self.counts, len(self.failures)
        shares = {name: counts[name] / counts["answers"] for name in ("truncated", "blank") if counts["answers"]}
        length = counts["tokens"] / counts["counted"] if counts["counted"] else None
        columns: Columns = {
            "prompts": "count", "answers": "count", "tokens per answer": "number", "truncated": "share",
            "blank": "share",
        }  # fmt: skip
        row = (counts["prompts"] - failed, counts["answers"], length, shares.get("truncated"), shares.get("blank"))
        table = Table("", columns, [row])
        notes = [f"answers: {file}"]
        if counts["resumed"]:
            notes.append(f"{counts['resumed']:,} of the prompts had answers before")
        if failed:
            more = f"; the first {MAX_SHOWN}" if failed > MAX_SHOWN else ""
            lines = [f"  {printable(one['prompt'], 100)}: {one['kind']}: {one['detail']}" for one in self.failures]
            notes += [f"{failed:,} prompts without answers{more}:", *lines[:MAX_SHOWN]]
            notes.append("The same command tries them again")
        metrics = {"prompts": float(counts["prompts"] - failed), "rollouts": float(counts["answers"])}
        metrics |= shares | ({} if length is None else {"length": length})
        facts = {"out": str(file), "resumed": counts["resumed"], "failures": self.failures[:MAX_LISTED]}
        return Result(metrics, [table], notes, facts, failed / max(1, counts["prompts"]))
