"""Set 00, start here: how far a draft is right."""

from ..exercise import exercise
from ..fresh import Draw, fresh


# ---- 00.matches -----------------------------------------------------------------------------------------------------
def matches(draft, choices):
    right = 0
    while right < len(draft) and draft[right] == choices[right]:
        right += 1
    return right


MATCHES = exercise(
    "00.matches",
    reference=matches,
    cases=[
        dict(draft=[5], choices=[5, 8]),
        dict(draft=[5], choices=[7, 8]),
        dict(draft=[], choices=[4]),
        dict(draft=[1, 2, 3], choices=[1, 9, 3, 6]),
        dict(draft=[9, 2, 3], choices=[1, 2, 3, 6]),
        dict(draft=[1, 2, 2, 4], choices=[1, 2, 2, 4, 4]),
    ],
)


@MATCHES.wrong_solutions
class _:
    def counts_all_matches(draft, choices):
        """You count every token that agrees, even those after the first mistake. From there on the model has judged the
        continuation of a wrong token, so agreement means nothing. Stop at the first token that differs."""
        return sum(a == b for a, b in zip(draft, choices, strict=False))

    def counts_the_models_own(draft, choices):
        """You count one token too many: the model's own choice after the draft. It is a gain, but not part of the
        draft. Return only how many draft tokens are right."""
        return matches(draft, choices) + 1

    def one_too_late(draft, choices):
        """You compare each draft token with the choice after it. choices[0] is what the model would emit in place of
        draft[0], so compare draft[i] with choices[i]."""
        return matches(draft, [*choices[1:], None])

    def all_or_nothing(draft, choices):
        """You ask only whether the whole draft is right. The part before the first mistake can be kept, so count the
        tokens up to there."""
        return len(draft) if matches(draft, choices) == len(draft) else 0


def compared(draw: Draw) -> dict:
    """A draft of which some tokens agree, in tokens so few that those after a mistake often agree again."""
    choices = [draw.whole(0, 2) for _ in range(draw.whole(1, 2 + 2 * draw.size))]
    return dict(draft=[draw.choice([one, one, draw.whole(0, 2)]) for one in choices[:-1]], choices=choices)


fresh("00.matches", "a mistake", compared, where=lambda case: matches(**case) < len(case["draft"]))
fresh("00.matches", "all of it is right", compared, where=lambda case: matches(**case) == len(case["draft"]))
