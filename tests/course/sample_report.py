"""The sample report of docs/teaching.md: four students, set 06, graded by today's grader.

    python tests/course/sample_report.py            print both parts
    python tests/course/sample_report.py --write    put them into docs/teaching.md

tests/course/test_sample_report.py compares what the page shows with what the grader says, except for the seconds and
the level of the sandbox, which are those of a machine.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/course")]

from graders import notebook, solutions  # noqa: E402
from mutants.exercises import WRONG_ANSWERS  # noqa: E402

from minispec_course.check.grade import Options, grade  # noqa: E402
from minispec_course.check.gradebook import summary  # noqa: E402

PAGE = ROOT / "docs/teaching.md"
BLOCK = re.compile(r"(?<=prints:\n\n```\n).*?(?=```\n)|(?<=writes `grades.csv`:\n\n```\n).*?(?=```\n)", re.DOTALL)
MISTAKES = {
    "alice": {},
    "bob": {"06.residual": "p_itself"},
    "carol": {"06.residual": "p_itself", "06.top_p": "reports_q_before_top_p"},
    "dan": {"06.sampler": "without_bonus"},
}


def report() -> tuple[str, str]:
    """What `minispec grade` prints about this class, and its CSV."""
    wrong = {(answer.exercise, answer.mutant): answer.source for answer in WRONG_ANSWERS}
    with tempfile.TemporaryDirectory() as folder:
        for student, mistakes in MISTAKES.items():
            answers = solutions("06") | {id: wrong[id, name] for id, name in mistakes.items()}
            (Path(folder) / "in" / student).mkdir(parents=True)
            (Path(folder) / "in" / student / "06.ipynb").write_text(json.dumps(notebook("06", answers)))
        out = Path(folder) / "grades.csv"
        results = grade(Path(folder) / "in", out, ["06"], Options(secret=b"the sample of docs/teaching.md"))
        return summary(results) + "\n", out.read_text(encoding="utf-8").replace("\r\n", "\n")


def shown() -> list[str]:
    """The two parts as the page shows them."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def of_any_machine(text: str) -> str:
    """Without what depends on the machine."""
    return re.sub(r"sandbox: .*", "sandbox: …", re.sub(r"[\d.]+ s per", "… s per", text))


if __name__ == "__main__":
    parts = report()
    print("\n".join(parts))
    if "--write" in sys.argv:
        left = (re.sub(r"[\d.]+ s per", "… s per", part) for part in parts)  # a machine's own
        PAGE.write_text(BLOCK.sub(lambda _: next(left), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
