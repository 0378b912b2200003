"""What becomes of a claimed batch: a hook's answer, heeded and held to the contract (semantics T4, M10)."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslot.hooks import Batch, Message, Rejection
from mailslot_contracts.events import parse_data
from mailslot_contracts.messages import CONTENT_BYTES_MAX
from mailslot_core.agent import AssistantEntry, ToolEntry, UserEntry
from mailslot_core.store import Claimed
from mailslot_services.agent_worker import plan
from mailslot_services.agent_worker.batch import (
    ADDED_COUNT_MAX,
    REASON_CHARACTERS_MAX,
    VERDICTS,
    HookFailed,
    Occasion,
    Place,
    Standing,
    Verdict,
    heed,
    place,
    shown,
    standing,
    verdict,
)

HERE = Occasion("s", "default", turn=2, step=1)


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def claimed(*names: str) -> Standing:
    return standing([Claimed(name, {"content": text(f"says {name}"), "source": {"kind": "user"}}) for name in names])


def after(answer: Callable[[Batch], Any], before: Standing, hook: str = "h") -> Standing:
    return heed(before, HERE, hook, answer(shown(before, HERE)))


def says(now: Standing) -> list[str]:
    return [block["text"] for _, data in now.entering() for block in data["content"]]


# -- what a hook may do -------------------------------------------------------------------------------------


def test_a_hook_that_says_nothing_lets_everything_in() -> None:
    before = claimed("A", "B")
    assert after(lambda batch: None, before) == before
    assert after(lambda batch: batch, before) == before
    assert says(before) == ["says A", "says B"]


def test_a_hook_sees_who_said_what_from_where() -> None:
    data: dict[str, Any] = {
        "content": text("hello"),
        "source": {"kind": "goal", "goalId": "g"},
        "metadata": {"channel": "mail"},
    }
    batch = shown(standing([Claimed("A", data)]), HERE)
    assert (batch.session_id, batch.agent, batch.turn, batch.step) == ("s", "default", 2, 1)
    assert batch.messages == (Message(data["content"], "A", data["source"], data["metadata"]),)
    assert batch.text == "hello"


def test_a_rewritten_message_stays_in_its_place_with_its_source() -> None:
    now = after(lambda batch: batch.rewrite("A", "other words"), claimed("A", "B"))
    assert says(now) == ["other words", "says B"]
    assert [data["source"] for _, data in now.entering()] == [{"kind": "user"}] * 2


def test_what_a_hook_does_to_the_blocks_it_was_shown_counts_only_if_it_answers_with_them() -> None:
    def spoil(batch: Batch) -> None:
        batch.messages[0].content[0]["text"] = "spoilt"  # type: ignore[index]

    before = claimed("A")
    assert says(after(spoil, before)) == ["says A"]


def test_an_added_message_has_a_source_and_an_id_of_its_own() -> None:
    now = after(lambda batch: batch.add("context", first=True).add("more"), claimed("A"), "shop:hook")
    assert says(now) == ["context", "says A", "more"]
    first, second, third = now.entering()
    assert second.message_id == "A"
    assert first.data["source"] == third.data["source"] == {"kind": "plugin", "name": "shop:hook"}
    assert len({first.message_id, "A", third.message_id}) == 3


def test_an_added_message_has_the_same_id_whenever_the_hook_is_asked_about_the_same_step() -> None:
    """A recovered turn admits what the first one would have (semantics R4)."""

    def add(batch: Batch) -> Batch:
        return batch.add("context")

    first, again = after(add, claimed("A")), after(add, claimed("A"))
    assert first == again
    ids = {
        heed(now, where, hook, add(shown(now, where))).entering()[-1].message_id
        for now in (claimed("A"),)
        for hook, session, turn, step in product(("h", "i"), ("s", "t"), (1, 2), (1, 2))
        for where in (Occasion(session, "default", turn, step),)
    }
    assert len(ids) == 16


def test_what_is_left_out_is_rejected_with_its_reason() -> None:
    before = claimed("A", "B", "C")
    now = after(lambda batch: replace(batch.without("A", "spam"), messages=batch.messages[2:]), before)
    assert says(now) == ["says C"]
    assert [draft.data for draft in now.rejections(2)] == [
        {"messageId": "A", "turn": 2, "reason": "spam"},
        {"messageId": "B", "turn": 2, "reason": "left out by h"},
    ]


def test_a_rejection_keeps_everything_out_that_is_left() -> None:
    now = after(lambda batch: batch.without("A", "spam").add("context"), claimed("A", "B"))
    now = after(lambda batch: Rejection("not today"), now)
    assert now.entering() == ()
    assert now.rejected == {"A": "spam", "B": "not today"}


def test_hooks_see_what_those_before_them_made_of_the_batch() -> None:
    now = after(lambda batch: batch.rewrite("A", "one").add("context"), claimed("A"), "first")
    assert [m.source["kind"] for m in shown(now, HERE).messages] == ["user", "plugin"]
    added = shown(now, HERE).messages[1].message_id
    now = after(lambda batch: batch.rewrite("A", batch.messages[0].text + " two").rewrite(added, "better"), now, "next")
    assert says(now) == ["one two", "better"]
    now = after(lambda batch: batch.without(added, "no need"), now, "last")
    assert says(now) == ["one two"]
    assert now.rejected == {}  # it was never in the inbox


def test_what_was_added_does_not_enter_alone() -> None:
    now = after(lambda batch: batch.add("context").without("A", "spam"), claimed("A"))
    assert now.entering() == ()


# -- what it may not ----------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Batch], Any]] = {
    "answered with int, not with None, a Batch or a Rejection": lambda batch: 3,
    "answered with bool, not with": lambda batch: False,
    "messages are no tuple of Message": lambda batch: replace(batch, messages=[]),  # type: ignore[arg-type]
    "whose messages are no tuple": lambda batch: replace(batch, messages=("A",)),  # type: ignore[arg-type]
    "answered with message B where it was not": lambda batch: replace(
        batch, messages=batch.messages + batch.messages[1:]
    ),
    "answered with message A where it was not": lambda batch: replace(batch, messages=batch.messages[::-1]),
    "answered with message X where it was not": lambda batch: replace(batch, messages=(Message("x", "X"),)),
    "changed more of message A than its content": lambda batch: replace(batch, messages=(Message("x", "A"),)),
    f"adds more than {ADDED_COUNT_MAX} messages": lambda batch: replace(batch, messages=(Message("x"),) * 33),
    "content: must not be empty": lambda batch: batch.rewrite("A", []),
    "a text block must say something": lambda batch: batch.add("  "),
    "must not hold a lone surrogate": lambda batch: batch.add("\ud800"),
    "must be text, a number": lambda batch: batch.add([{"type": "text", "text": object()}]),
    "content.0": lambda batch: batch.add([{"type": "sound", "data": "x"}]),
    f"the limit is {CONTENT_BYTES_MAX}": lambda batch: batch.rewrite("A", "x" * (CONTENT_BYTES_MAX + 1)),
    "rejects without a reason in 1 to 1000": lambda batch: Rejection(""),
    "rejects without a reason in": lambda batch: Rejection("x" * (REASON_CHARACTERS_MAX + 1)),
    "rejects without a reason": lambda batch: batch.without("A", "\ud800"),
    "hook h rejects without": lambda batch: batch.without("A", 3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("complaint", "answer"), FAULTS.items(), ids=FAULTS)
def test_an_answer_that_cannot_be_names_the_hook_and_what_is_wrong(
    complaint: str, answer: Callable[[Batch], Any]
) -> None:
    with pytest.raises(HookFailed, match=r"^hook h") as failed:
        after(answer, claimed("A", "B"))
    assert complaint in str(failed.value)


def test_a_batch_says_which_message_it_does_not_have() -> None:
    batch = shown(claimed("A"), HERE)
    with pytest.raises(ValueError, match="there is no message 'X'"):
        batch.rewrite("X", "x")
    with pytest.raises(ValueError, match="there is no message 'X'"):
        batch.without("X", "x")
    with pytest.raises(ValueError, match="there is no message ''"):
        batch.add("c").rewrite("", "x")


# -- whatever a hook does -----------------------------------------------------------------------------------

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("rewrite"), st.sampled_from("ABC"), st.text(min_size=1, max_size=5)),
        st.tuples(st.just("without"), st.sampled_from("ABC"), st.text(min_size=1, max_size=5)),
        st.tuples(st.just("add"), st.booleans(), st.text(min_size=1, max_size=5)),
        st.tuples(st.just("reject"), st.none(), st.text(min_size=1, max_size=5)),
    ),
    max_size=6,
)


def act(batch: Batch, what: str, which: Any, words: str) -> Batch | Rejection:
    if what == "reject":
        return Rejection(words)
    return batch.add(words, first=which) if what == "add" else getattr(batch, what)(which, words)


@given(st.lists(ACTS, max_size=3))
def test_whatever_hooks_do_each_claimed_message_enters_once_or_is_rejected_once(hooks: list[Any]) -> None:
    """And in the order of its claim, and every fact is one that the contract knows."""
    now = claimed("A", "B", "C")
    for number, acts in enumerate(hooks):
        answer: Any = shown(now, HERE)
        try:
            for one in acts:
                answer = act(answer, *one) if isinstance(answer, Batch) else answer
            now = heed(now, HERE, f"hook{number}", answer)
        except (ValueError, HookFailed):
            break
    entered = [m.message_id for m in now.entering()]
    of_the_claim = [name for name in entered if name in "ABC"]
    assert len(set(entered)) == len(entered)
    assert of_the_claim == sorted(of_the_claim)
    assert sorted([*of_the_claim, *now.rejected]) == ["A", "B", "C"]
    assert of_the_claim or not entered
    for draft in (*now.rejections(2), *plan.step_start(2, 1, now.entering())):
        parse_data(draft.type, draft.data)


# -- what follows -------------------------------------------------------------------------------------------


def test_every_place_has_a_verdict() -> None:
    assert set(VERDICTS) == set(product(Place, (True, False)))


@pytest.mark.parametrize(
    ("where", "left", "expected"),
    [
        (Place.START, "A", Verdict.STEP),
        (Place.START, "", Verdict.BLOCKED),
        (Place.AFTER_TOOLS, "", Verdict.STEP),
        (Place.AFTER_ANSWER, "A", Verdict.STEP),
        (Place.AFTER_ANSWER, "", Verdict.END),
    ],
)
def test_what_the_turn_does_depends_on_who_is_left_and_where_it_is(where: Place, left: str, expected: Verdict) -> None:
    assert verdict(where, claimed(*left)) is expected


def test_a_new_owner_sees_where_the_turn_is_by_its_transcript() -> None:
    asked, answered = UserEntry(text("A")), AssistantEntry("done")
    result = ToolEntry("c", "t", "done")
    assert place(0, [asked, answered]) is Place.START
    assert place(1, [asked, answered]) is Place.AFTER_ANSWER
    assert place(1, [asked, answered, result]) is Place.AFTER_TOOLS
