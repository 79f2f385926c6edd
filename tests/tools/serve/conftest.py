"""Tests of the server run event loops of their own."""

from asyncio import events

import pytest


@pytest.fixture(autouse=True)
def no_loop_of_others():
    """Playwright's synchronous API keeps a loop running in the thread of a test worker that has run browser tests, and
    asyncio starts no second one there."""
    loop = events._get_running_loop()
    events._set_running_loop(None)
    yield
    events._set_running_loop(loop)
