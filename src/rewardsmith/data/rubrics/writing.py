"""A model writes the rubric of a problem.

writer = RubricWriter(model, load_writing_template("write_rubric"), Asking())
said = await writer.write(problem)
said.value.criteria()                # what the `rubric` reward reads
"""

from __future__ import annotations

from collections.abc import Sequence

from rewardsmith.data.rubrics.asking import Asking, Said, first_readable, mend
from rewardsmith.data.rubrics.problems import Problem, digest_of
from rewardsmith.llm import ChatModel
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import quote
from rewardsmith.text.rubrics import LeakDetector, WrittenRubric, parse_rubric, rubric_places
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message

TOTAL = 10
"""Points of a rubric."""

LONGEST_SOLUTION = 20_000
"""Characters of a reference solution that are shown; of a longer one the middle is left out."""


def load_writing_template(name: str) -> Template:
    """Return the template for writing a rubric: `write_rubric`, or the path of one's own.

    Raises:
        UserError: there is no such template, or it does not show the problem.
    """
    return load_template(name, known=("question", "reference", *rubric_places(TOTAL)), needed=("question",))


class RubricWriter:
    """Has rubrics written.

    Args:
        model: writes them.
        template: of `load_writing_template`.
        asking: how it is asked.
        reference: whether it is shown the right answer and the reference solution, where there are some.
    """

    def __init__(self, model: ChatModel, template: Template, asking: Asking, *, reference: bool = True) -> None:
        self._model = model
        self._template = template
        self._asking = asking
        self._reference = reference

    def prompt(self, problem: Problem) -> tuple[Message, ...]:
        """Return what the model is asked first."""
        places = rubric_places(TOTAL) | {
            "question": quote(problem.question),
            "reference": _reference(problem) if self._reference else "",
        }
        return self._template.render({place: places[place] for place in self._template.places})

    def key(self, problem: Problem) -> str:
        """Return what the rubric of a problem is known by: all that it depends on, except the model."""
        return digest_of(self.prompt(problem), problem.question, problem.answers, problem.solution)

    async def write(self, problem: Problem) -> Said[WrittenRubric]:
        """Return a rubric that has all that it must have; see `parse_rubric`.

        Raises:
            ModelCallError: there is none after all tries.
        """
        first = self.prompt(problem)
        tied = LeakDetector(problem.question, problem.answers, problem.solution)

        def again(_: Sequence[Message], said: str, error: Unparsable) -> Sequence[Message]:
            return mend(first, said, error)

        return await first_readable(
            self._model, first, lambda text: parse_rubric(text, TOTAL, tied), self._asking, again=again
        )


def _reference(problem: Problem) -> str:
    """Return the section with what is known of the right answer; "" where nothing is."""
    parts = []
    if problem.answers:
        parts += ["The right answer:", quote("\nor: ".join(problem.answers), LONGEST_SOLUTION)]
    if problem.solution.strip():
        parts += ["One solution among others:", quote(problem.solution, LONGEST_SOLUTION)]
    note = "This is for you alone. The rubric must not name it, and must not prefer its approach."
    return "\n".join(["", "## Reference", "", note, "", *parts, ""]) if parts else ""


__all__ = ["TOTAL", "RubricWriter", "load_writing_template"]
