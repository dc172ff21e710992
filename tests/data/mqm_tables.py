"""Small MQM tables in the form in which WMT's are published."""

from pathlib import Path

HEADER = ("system", "doc", "doc_id", "seg_id", "rater", "source", "target", "category", "severity")

RATED = {
    # segment 1: a has 5 + 0.1, b nothing, c 1 from one rater and 25 from the other
    ("a", "1"): [
        ("r1", "<v>Aus</v>gang", "Ex<v>it</v>.", "Accuracy/Mistranslation", "Major"),
        ("r1", "Ausgang", "Exit<v>.</v>", "Fluency/Punctuation", "Minor"),
    ],
    ("b", "1"): [("r2", "Ausgang", 'The "way out', "No-error", "No-error")],
    ("c", "1"): [
        ("r1", "Ausgang", "<v>Way</v> out", "Style/Awkward", "Minor"),
        ("r2", "Ausgang", "Way out", "Non-translation!", "Major"),
    ],
    # segment 2: b and c say the same, and were rated apart
    ("a", "2"): [("r1", "Ja.", "Yes.", "No-error", "No-error")],
    ("b", "2"): [("r1", "Ja.", "<v>Yeah</v>", "Style/Awkward", "Minor")],
    ("c", "2"): [("r2", "Ja.", "<v>Yeah</v>", "Style/Awkward", "Major"), ("r2", "Ja.", "Yeah", "Other", "Neutral")],
}
PENALTIES = {("a", "1"): 5.1, ("b", "1"): 0.0, ("c", "1"): 13.0, ("a", "2"): 0.0, ("b", "2"): 1.0, ("c", "2"): 5.0}


def lines(doc: str = "talk.2") -> list[str]:
    """Return the lines of the table, the header first."""
    rows = [(system, doc, segment, segment, *error) for (system, segment), errors in RATED.items() for error in errors]
    return ["\t".join(fields) for fields in [HEADER, *((s, d, i, g, *rest) for s, d, i, g, *rest in rows)]]


def write_annotations(folder: Path, given: list[str] | None = None, name: str = "mqm_deen.tsv") -> Path:
    path = folder / name
    path.write_text("\n".join(given or lines()) + "\n", encoding="utf-8")
    return path
