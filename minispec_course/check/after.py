"""What to say about a right answer: what was checked, what it shows, and where minispec does the same."""

from textwrap import wrap

from ..exercises.exercise import Exercise
from ..exercises.fresh import properties


def praise(exercise: Exercise) -> str:
    parts = properties(exercise.id)
    counts = {"example": len(exercise.cases), "fresh case": sum(part.count for part in parts.values())}
    counted = " and ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items() if n)
    compare = f"{exercise.code} is how {'minispec' if exercise.code.startswith('minispec.') else 'the course'} does it."
    told = {"Checked": "; ".join(parts), "It shows": exercise.shows, "Compare": compare}
    lines = [f"{exercise.id}: right, in {counted}."]
    for name, text in told.items():
        lines += wrap(text, 100, initial_indent=f"  {name + ':':10}", subsequent_indent=12 * " ")
    return "\n".join(lines)
