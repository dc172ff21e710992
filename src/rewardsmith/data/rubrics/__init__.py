"""Rubrics that a model writes, and solutions that a teacher grades by them: the data of a rubric reward model."""

from rewardsmith.data.rubrics.asking import Asking
from rewardsmith.data.rubrics.bands import Balance
from rewardsmith.data.rubrics.grading import Grades, Teacher
from rewardsmith.data.rubrics.problems import Problem, ProblemRows, Solution, SolutionRows
from rewardsmith.data.rubrics.writing import RubricWriter, load_writing_template

__all__ = [
    "Asking",
    "Balance",
    "Grades",
    "Problem",
    "ProblemRows",
    "RubricWriter",
    "Solution",
    "SolutionRows",
    "Teacher",
    "load_writing_template",
]
