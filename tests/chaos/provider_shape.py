"""What a provider of models refuses: a validator of its own, which knows nothing of how the transcript is made.

    user | assistant | assistant with calls, then one result for each of them, and only then anything else

It is fed facts one after the other. After every one of them the history must be one that a provider takes as it is, or
one in which only results of the last answer's calls are missing (those a recovered turn makes up before it asks again).
"""

from collections.abc import Iterable

from tests.chaos.ledger import Ledger


class BadShape(AssertionError):
    """A history that a provider refuses; the sentence names the fact that broke it."""


def check_after_every_fact(facts: Ledger) -> None:
    """The history is well-formed after each fact, and complete whenever the model is asked (`step/start` to answer)."""
    missing: set[str] = set()
    known: set[str] = set()
    for each in facts:
        match each.type:
            case "user/message":
                must(not missing, each.seq, f"a user stands between calls and their results {missing}")
            case "assistant/message":
                must(not missing, each.seq, f"an answer stands before the results of {missing}")
                missing = {call["callId"] for call in each.data.get("toolCalls", ())}
                must(not missing & known, each.seq, "a call id is used twice")
                known |= missing
                must(len(missing) == len(each.data.get("toolCalls", ())), each.seq, "two calls share an id")
            case "tool/result":
                must(each.data["callId"] in missing, each.seq, "a result answers no call of the last answer")
                missing.discard(each.data["callId"])
            case "step/start" | "step/end" | "turn/end":
                must(not missing, each.seq, f"{each.type} leaves calls without results: {missing}")


def must(holds: bool, seq: int, sentence: str) -> None:
    if not holds:
        raise BadShape(f"at seq {seq} {sentence}")


def check_all(ledgers: Iterable[Ledger]) -> None:
    """Every ledger."""
    for facts in ledgers:
        check_after_every_fact(facts)
