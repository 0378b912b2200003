"""For tests of systems that use mailslot: a real server in this process, a model that says what the test wants, faults.

    from mailslot.testing import Server, assert_queued

    def test_an_order_is_passed_on() -> None:
        with Server() as server:
            server.answers("It is on its way.")
            shop = Shop(server.client())                # what is to be tested

            with server.model.held():                   # no model answers before the block is left
                shop.order("a lamp")
                assert_queued(server, "a lamp", lane="next-turn")

            server.wait_idle("orders")

    server     the server: where it is, what its ledgers say, waiting        port    what stands behind it
    script     what a model answers, as plain data                           ledger  what a ledger says of a message
    agent      an agent: its script, tools, hooks                            assertion    `assert_queued`, ...

Rule 1: doors, worker and goal service are those of the product; only what keeps sessions is a store in memory, the
        model that Redis is held to. Nothing outlives the `with`.
Rule 2: what this kit says has happened, it read in the ledger. Nothing here pairs a message with a result either.
Rule 3: nothing sleeps. Who waits, waits for a fact; who needs a moment to last, holds the model.

The pytest plugin (fixtures `mailslot_server`, `mailslot_client`) is `mailslot_services.testbed.plugin`. docs/testing.md
shows how all of it is used.
"""

from mailslot.testing.agent import Agent
from mailslot.testing.assertion import (
    assert_admitted,
    assert_not_queued,
    assert_queued,
    assert_state,
    events,
    history,
    wait_idle,
    wait_turn_open,
)
from mailslot.testing.port import Clock, Fault, Faults, Model, ModelCall, NotInstalled
from mailslot.testing.script import Answer, Call, Delta, Failure, Rule, When, call, fail, hang
from mailslot.testing.server import Server

__all__ = [
    "Agent",
    "Answer",
    "Call",
    "Clock",
    "Delta",
    "Failure",
    "Fault",
    "Faults",
    "Model",
    "ModelCall",
    "NotInstalled",
    "Rule",
    "Server",
    "When",
    "assert_admitted",
    "assert_not_queued",
    "assert_queued",
    "assert_state",
    "call",
    "events",
    "fail",
    "hang",
    "history",
    "wait_idle",
    "wait_turn_open",
]
