"""Wrong servers. Each function breaks one part by a monkeypatch."""

from __future__ import annotations

from pytest import MonkeyPatch

from minispec.server import app
from minispec.server.app import Server
from minispec.server.service import Metrics, Service

from .patching import Mutant, rewrite


def vanished_client_keeps_its_blocks(patch: MonkeyPatch) -> None:
    """Never tells the engine that nobody waits any more."""
    patch.setattr(Service, "abort", lambda self, ticket: None)


def another_request_is_aborted(patch: MonkeyPatch) -> None:
    """Gives back the blocks of the oldest request instead."""
    rewrite(patch, Service, "_abort", "self.engine.abort(ticket.id)", "self.engine.abort(next(iter(self.engine.jobs)))")


def queue_without_an_end(patch: MonkeyPatch) -> None:
    rewrite(patch, Service, "require_room", ">= self.most", ">= 10**9")


def new_requests_while_draining(patch: MonkeyPatch) -> None:
    rewrite(patch, Service, "require_room", "if self.draining:", "if False:")


def pieces_sent_again(patch: MonkeyPatch) -> None:
    """Streams everything so far with every step."""
    rewrite(patch, Service, "_hand_over", "ticket.pieces.clear()", "pass")


def engine_waits_for_readers(patch: MonkeyPatch) -> None:
    """Holds the engine's thread up until the slowest client has read."""
    waits = "any(t.events.qsize() > 8 for t, _ in batch)"
    deliver = "self.loop.call_soon_threadsafe(self._deliver, batch)"
    rewrite(
        patch, Service, "_hand_over", deliver, f"{deliver}; [time.sleep(0.01) for _ in iter(lambda: {waits}, False)]"
    )


def failed_step_ends_the_thread(patch: MonkeyPatch) -> None:
    rewrite(patch, Service, "_step", "except Exception as error:", "except KeyboardInterrupt as error:")


def client_sees_the_exception(patch: MonkeyPatch) -> None:
    """Tells clients what belongs into the log."""
    rewrite(patch, app, "problem", "ApiError(500, BUG,", "ApiError(500, str(event.error),")


def beginning_of_the_key_is_enough(patch: MonkeyPatch) -> None:
    rewrite(
        patch,
        Server,
        "require_key",
        'hmac.compare_digest(given, self.api_key.encode("utf-8"))',
        "self.api_key.encode().startswith(given)",
    )


def schema_is_taken_and_forgotten(patch: MonkeyPatch) -> None:
    """Checks a response_format, answers 200, and lets the model say what it likes."""
    wish = 'options["json_schema"] = given.get("response_format")'
    rewrite(patch, app.schemas, "read", wish, 'options["json_schema"] = None')


def tokens_counted_as_steps(patch: MonkeyPatch) -> None:
    rewrite(patch, Metrics, "count_tokens", ".inc(tokens - ticket.tokens)", ".inc()")


def positions_from_one(patch: MonkeyPatch) -> None:
    rewrite(patch, Metrics, "count_step", "range(row.accepted)", "range(1, row.accepted + 1)")


def hits_counted_again(patch: MonkeyPatch) -> None:
    """Adds all prefix hits so far in every step."""
    rewrite(patch, Metrics, "count_step", "inc(self.prefix_hits - hits)", "inc(self.prefix_hits)")


MUTANTS = {
    mutant.__name__: Mutant(mutant, caught_by)
    for mutant, *caught_by in (
        (vanished_client_keeps_its_blocks, "vanished_client", "vanished_before_the_first_token"),
        (another_request_is_aborted, "crowd"),
        (queue_without_an_end, "full_queue"),
        (new_requests_while_draining, "drain"),
        (pieces_sent_again, "answers", "crowd"),
        (engine_waits_for_readers, "slow_reader"),
        (failed_step_ends_the_thread, "one_fails"),
        (client_sees_the_exception, "one_fails"),
        (beginning_of_the_key_is_enough, "key"),
        (schema_is_taken_and_forgotten, "response_format"),
        (tokens_counted_as_steps, "metrics"),
        (positions_from_one, "metrics"),
        (hits_counted_again, "metrics"),
    )
}
