"""Wrong variants of minispec's parts, each a mistake that is easy to make. The suite must catch every one."""

import pytest


def assert_noticed(check, *arguments, errors=AssertionError) -> None:
    """The check fails; `errors` may include those of guards in the code itself."""
    with pytest.raises(errors):
        check(*arguments)
        pytest.fail(f"{check.__name__} does not notice the mutant", pytrace=False)
