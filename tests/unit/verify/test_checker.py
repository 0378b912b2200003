"""The checker passes every sound ledger and finds what is broken in each bad one: one thing, and that one."""

import ast
import json
from pathlib import Path
from typing import Any, Final

import pytest

from mailslot_services.verify.checker import check
from mailslot_services.verify.ledger import Entry, Unreadable, read
from mailslot_services.verify.recorder import Recorder
from mailslot_services.verify.report import Kind, Report
from tests.unit.verify.ledgers import ledger, raw, text

ROOT: Final = Path(__file__).parents[3]
VECTORS: Final = sorted((ROOT / "contracts" / "vectors").glob("*.json"))
INDEPENDENT: Final = ("ledger", "recorder", "report", "walk", "life", "turn", "checker")

ANSWERED: Final = "q:A R | T1 c:A | S1 u:A | a | s1 t1 I"


def checked(words: str, seen: Recorder | None = None, **options: Any) -> Report:
    return check({"s": read(raw(ledger(words)))}, seen, **options)


def told(*receipts: tuple[str, int]) -> Recorder:
    """A client that got these receipts, one after the other."""
    seen = Recorder()
    for number, (message_id, cursor) in enumerate(receipts):
        seen.receipt("s", message_id, cursor, sent_ms=number * 10, answered_ms=number * 10 + 5)
    return seen


# -- sound ledgers --------------------------------------------------------------------------------------------

SOUND: Final = {
    "nothing": "",
    "one follow-up": ANSWERED,
    "an unknown type": "q:A R other | T1 c:A S1 u:A a s1 t1 I",
    "two follow-ups": "q:A R | q:B | T1 c:A S1 u:A a s1 t1 T2 c:B S1 u:B a s1 t2 I",
    "a steer at the edge": "q:A R | T1 c:A S1 u:A | qs:S | a s1 cs:S | S2 u:S a s2 t1 I",
    "injects before the follow-up": "qi:C | qi:D | q:A R | T1 c:C,D,A S1 u:C u:D u:A a s1 t1 I",
    "an inject that waits at rest": f"{ANSWERED} | qi:C",
    "tools": "q:A R | T1 c:A S1 u:A a:x,y | call:x | call:y | result:y | result:x s1 | S2 a s2 t1 I",
    "an undispatched call": "q:A R | T1 c:A S1 u:A a:x,y call:x | cancel: | result:x result:y s1 t1:aborted I",
    "a killed worker": "q:A R | T1 c:A S1 | +900 ^ recovered:2 | u:A a s1 t1 I",
    "two crashes and a handback": (
        "q:A R | T1 c:A S1 | ^ recovered:2 | ^ recovered:2,handback | ^ recovered:3 u:A a s1 t1 I"
    ),
    "a turn given up": "q:A R | T1 c:A S1 | ^ s1 dead:A t1:interrupted I",
    "a dead message redriven": (
        "q:A R | T1 c:A S1 | ^ s1 dead:A t1:interrupted I | q:A,redrive R | ^ T2 c:A S1 u:A a s1 t2 I"
    ),
    "a cancel that clears": "q:A R | T1 c:A S1 u:A | q:B | cancel:,clear x:B | a s1 t1:aborted I",
    "a cancel before admission": "q:A R | T1 c:A | cancel: | x:A t1:aborted I",
    "a hold": (
        "q:A R | q:B | T1 c:A S1 u:A | cancel:,hold held | a s1 t1:aborted I | q:C released R | "
        "T2 c:B S1 u:B a s1 t2 T3 c:C S1 u:C a s1 t3 I"
    ),
    "a hold that stays": "q:A R | q:B | T1 c:A S1 u:A | cancel:,hold held | a s1 t1:aborted I",
    "a withdrawal": "q:A R | withdrawn:A I",
    "a hook that rejects": "q:A R | T1 c:A rej:A t1:blocked I",
    "a hook that adds": "q:A R | T1 c:A S1 u:A u:extra a s1 t1 I",
    "a failure before admission": "q:A R | T1 c:A rej:A t1:error I",
    "steer this one": "q:A R | q:B | q:C | T1 c:A S1 u:A | moved:C | a s1 cs:C S2 u:C a s2 t1 T2 c:B S1 u:B a s1 t2 I",
    "a replacement": "q:A R | replaced:A | T1 c:A S1 u:A a s1 t1 I",
    "words": "q:A,pay_Bob R | T1 c:A S1 u:A,pay_Bob a s1 t1 I",
    "words replaced": (
        "q:A R | q:B,pay_Bob | replaced:B,pay_Eve | T1 c:A S1 u:A a s1 t1 | replaced:B,pay_Zoe | "
        "T2 c:B S1 u:B,pay_Zoe a s1 t2 I"
    ),
    "words redriven": (
        "q:A,pay_Bob R | replaced:A,pay_Eve | T1 c:A S1 | ^ s1 dead:A t1:interrupted I | q:A,redrive,pay_Eve R | "
        "^ T2 c:A S1 u:A,pay_Eve a s1 t2 I"
    ),
    "a delayed message": "q:A,notBefore=100 | +200 due:A R | T1 c:A S1 u:A a s1 t1 I",
    "a delayed message overtaken": (
        "q:A,notBefore=100 | q:B R | T1 c:B S1 u:B | +200 due:A | a s1 t1 T2 c:A S1 u:A a s1 t2 I"
    ),
    "a delayed message that waits": "q:A,notBefore=100",
    "an expiry": "q:A,expiresAt=100 R | +200 expired:A I",
    "a retry": "q:A R | T1 c:A S1 u:A | retry | a s1 t1 I",
    "a closed session": f"{ANSWERED} | closed",
}


@pytest.mark.parametrize("words", SOUND.values(), ids=SOUND.keys())
def test_a_sound_ledger_passes(words: str) -> None:
    assert checked(words).sentences == []


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_a_golden_trace_passes(path: Path) -> None:
    """Vectors have no times; where one matters, the events before `inbox/due` are earlier than it."""
    vector = json.loads(path.read_text())
    time, entries = 1_764_554_400_000, []
    for event in vector["history"]:
        if event["type"] == "inbox/due":
            time += 3_600_000
        entries.append(Entry(event["seq"], event["type"], time, 1, event["data"]))
        if event["type"] == "turn/recovered":
            entries = [*entries[:-1], entries[-1]._replace(epoch=2)]
    epoch = 1
    for number, entry in enumerate(entries):
        epoch = max(epoch, entry.epoch)
        entries[number] = entry._replace(epoch=epoch)
    seen = told(*((receipt["messageId"], receipt["cursor"]) for receipt in vector["receipts"]))
    assert check({"s": read(raw(entries))}, seen).sentences == []


# -- bad ledgers ----------------------------------------------------------------------------------------------

BROKEN: Final[dict[str, tuple[Kind, str]]] = {
    # messages
    "queued twice": (Kind.DUPLICATE, "q:A R | q:A | T1 c:A S1 u:A a s1 t1 I"),
    "queued again after its end": (Kind.DUPLICATE, f"{ANSWERED} | q:A R | T2 c:A S1 u:A a s1 t2 I"),
    "redriven and never dead": (Kind.DUPLICATE, f"{ANSWERED} | q:A,redrive R | T2 c:A S1 u:A a s1 t2 I"),
    "admitted twice": (Kind.DUPLICATE_ADMISSION, "q:A R | T1 c:A S1 u:A | ^ recovered:2 u:A a s1 t1 I"),
    "admitted after it was withdrawn": (Kind.DUPLICATE, "q:A R | q:B | withdrawn:B | T1 c:A S1 u:A u:B a s1 t1 I"),
    "withdrawn twice": (Kind.DUPLICATE, "q:A R | withdrawn:A I | withdrawn:A"),
    "withdrawn after it was claimed": (Kind.LIFE, "q:A R | T1 c:A | withdrawn:A | S1 a s1 t1 I"),
    "replaced after it was claimed": (Kind.LIFE, "q:A R | T1 c:A | replaced:A | S1 u:A a s1 t1 I"),
    "moved after it was claimed": (Kind.LIFE, "q:A R | T1 c:A | moved:A | S1 u:A a s1 t1 I"),
    "expired before its time": (Kind.LIFE, "q:A,expiresAt=100 R | expired:A I"),
    "due before its time": (Kind.LIFE, "q:A,notBefore=100 | due:A | +200 due:A R | T1 c:A S1 u:A a s1 t1 I"),
    "claimed after its time": (Kind.LIFE, "q:A,expiresAt=100 R | +200 T1 c:A S1 u:A a s1 t1 I"),
    "claimed before it is due": (Kind.LIFE, "q:B R | q:A,notBefore=100 | T1 c:A,B S1 u:B a s1 t1 I"),
    "claimed on hold": (
        Kind.LIFE,
        "q:A R | q:B | T1 c:A S1 u:A | cancel:,hold held | a s1 t1:aborted T2 c:B S1 u:B a s1 t2 I",
    ),
    "admitted without a claim": (
        Kind.LIFE,
        "qi:C | q:A R | T1 c:C,A S1 u:C u:A a s1 t1 I | qi:D | q:B R | T2 c:D,B S1 u:D u:B | q:E | u:E a s1 t2 I",
    ),
    "never queued and cancelled": (Kind.LIFE, f"{ANSWERED} | withdrawn:B"),
    "rejected and never queued": (Kind.LIFE, "q:A R | T1 c:A rej:A rej:B t1:blocked I"),
    "expired and never queued": (Kind.LIFE, f"{ANSWERED} | expired:B"),
    "dead and never queued": (Kind.LIFE, f"{ANSWERED} | dead:B"),
    "due and never queued": (Kind.LIFE, f"{ANSWERED} | due:B"),
    "claimed and forgotten by its turn": (Kind.LIFE, "qi:C | q:A R | T1 c:C,A S1 u:A a s1 t1 I"),
    "closed with something left": (Kind.LIFE, f"{ANSWERED} | qi:C | closed"),
    "queued in a closed session": (Kind.LIFE, f"{ANSWERED} | closed | qi:B"),
    "lost at rest": (Kind.LOSS, "qi:C | q:A R | T1 c:C,A S1 u:A a s1 t1:error I"),
    "more queued than ever ended": (Kind.CONSERVATION, "q:A R | q:A | T1 c:A S1 u:A a s1 t1 I"),
    # words
    "words of another message": (Kind.CONTENT, "qi:C | q:A,pay_Bob R | T1 c:C,A S1 u:C u:A,pay_Eve a s1 t1 I"),
    "a body emptied": (Kind.CONTENT, "q:A,pay_Bob R | T1 c:A S1 u:A a s1 t1 I"),
    "words out of nothing": (Kind.CONTENT, "q:A R | T1 c:A S1 u:A,pay_Eve a s1 t1 I"),
    "old words after a replacement": (
        Kind.CONTENT,
        "q:A,pay_Bob R | replaced:A,pay_Eve | T1 c:A S1 u:A,pay_Bob a s1 t1 I",
    ),
    "redriven with the words of before a replacement": (
        Kind.CONTENT,
        "q:A,x R | replaced:A,y | T1 c:A | ^ dead:A t1:interrupted I | q:A,redrive,x R | ^ T2 c:A S1 u:A,x a s1 t2 I",
    ),
    # order
    "follow-ups inverted": (Kind.INVERSION, "q:A R | q:B | T1 c:B S1 u:B a s1 t1 T2 c:A S1 u:A a s1 t2 I"),
    "steers inverted": (Kind.INVERSION, "qs:S R | qs:T | T1 c:T,S S1 u:T u:S a s1 t1 I"),
    "a steer behind the follow-up": (Kind.INVERSION, "qs:S R | q:A | T1 c:A,S S1 u:A u:S a s1 t1 I"),
    "a steer left behind": (Kind.INVERSION, "q:A R | qs:S | T1 c:A S1 u:A a s1 cs:S S2 u:S a s2 t1 I"),
    "two follow-ups in a turn": (Kind.INVERSION, "q:A R | q:B | T1 c:A,B S1 u:A u:B a s1 t1 I"),
    "a follow-up at a step": (Kind.INVERSION, "q:A R | q:B | T1 c:A S1 u:A a s1 cs:B S2 u:B a s2 t1 I"),
    "due ones inverted": (
        Kind.INVERSION,
        "q:A,notBefore=100 | q:B R | +200 due:A | T1 c:A S1 u:A a s1 t1 T2 c:B S1 u:B a s1 t2 I",
    ),
    "entered in another order": (Kind.INVERSION, "qi:C | q:A R | T1 c:C,A S1 u:A u:C a s1 t1 I"),
    # turns
    "overlapping turns": (Kind.TURN, "q:A R | q:B | T1 c:A T2 c:B S1 u:A u:B a s1 t2 I"),
    "a turn skipped": (Kind.TURN, "q:A R | T2 c:A S1 u:A a s1 t2 I"),
    "a turn that claims nothing": (Kind.TURN, "q:A R | T1 | c:A S1 u:A a s1 t1 | T2 S1 a s1 t2 I"),
    "two ends": (Kind.TURN, "q:A R | T1 c:A S1 u:A a s1 t1 | t1 I"),
    "an end inside a step": (Kind.TURN, "q:A R | T1 c:A S1 u:A a t1 I"),
    "a step skipped": (Kind.TURN, "q:A R | T1 c:A S2 u:A a s2 t1 I"),
    "a step that ends twice": (Kind.TURN, "q:A R | T1 c:A S1 u:A a s1 s1 t1 I"),
    "a claim inside a step": (Kind.TURN, "q:A R | T1 c:A S1 u:A | qi:C | cs:C a s1 S2 u:C a s2 t1 I"),
    "completes while a steer waits": (Kind.TURN, "q:A R | T1 c:A S1 u:A | qs:S | a s1 t1 T2 c:S S1 u:S a s1 t2 I"),
    "a takeover that nobody announced": (Kind.TURN, "q:A R | T1 c:A S1 u:A | ^ a s1 t1 I"),
    "recovered twice": (Kind.TURN, "q:A R | T1 c:A S1 u:A | ^ recovered:2 recovered:2,handback | a s1 t1 I"),
    "recovered with another count": (Kind.TURN, "q:A R | T1 c:A S1 u:A | ^ recovered:3 | a s1 t1 I"),
    "recovered when none is open": (Kind.TURN, f"{ANSWERED} | ^ recovered:2"),
    # cancel
    "aborted and not cancelled": (Kind.CANCEL, "q:A R | T1 c:A S1 u:A a s1 t1:aborted I"),
    "cancelled and completed": (Kind.CANCEL, "q:A R | T1 c:A S1 u:A | cancel: | a s1 t1 I"),
    "a cancel of the turn before": (
        Kind.CANCEL,
        "q:A R | q:B | T1 c:A S1 u:A a s1 t1 T2 c:B S1 u:B | cancel:1 | a s1 t2 I",
    ),
    "a cancel hits what came after it": (
        Kind.CANCEL,
        "q:A R | T1 c:A S1 u:A | cancel:,clear | q:B | x:B | a s1 t1:aborted I",
    ),
    "a cancel that keeps takes from the queue": (
        Kind.CANCEL,
        "q:A R | q:B | T1 c:A S1 u:A | cancel: x:B | a s1 t1:aborted I",
    ),
    # the transcript
    "a result without call": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a result:x s1 t1 I"),
    "a result twice": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a:x call:x result:x result:x s1 t1 I"),
    "a call without result": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a:x call:x s1 t1 I"),
    "a call nobody asked for": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a call:x s1 t1 I"),
    "a call started twice": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a:x call:x call:x result:x s1 t1 I"),
    "a message between a call and its result": (
        Kind.TRANSCRIPT,
        "qi:C | q:A R | T1 c:C,A S1 u:C a:x call:x u:A result:x s1 t1 I",
    ),
    "a step begun before the results": (
        Kind.TRANSCRIPT,
        "q:A R | T1 c:A S1 u:A a:x call:x S2 retry result:x a s2 t1 I",
    ),
    "two answers in a step": (Kind.TRANSCRIPT, "q:A R | T1 c:A S1 u:A a a s1 t1 I"),
    "a message outside of a step": (Kind.TRANSCRIPT, "q:A R | T1 c:A u:A S1 a s1 t1 I"),
    # status
    "running twice": (Kind.STATUS, "q:A R R | T1 c:A S1 u:A a s1 t1 I"),
    "released and not held": (Kind.STATUS, f"{ANSWERED} | qi:C released"),
    "idle and a message waits": (Kind.IDLE, "q:A R | q:B | T1 c:A S1 u:A a s1 t1 I R | T2 c:B S1 u:B a s1 t2 I"),
    "idle inside a turn": (Kind.IDLE, "q:A R | T1 c:A S1 u:A a I R s1 t1 I"),
    "never woken": (Kind.IDLE, "q:A | R | T1 c:A S1 u:A a s1 t1 I"),
    "never idle": (Kind.IDLE, "q:A R | T1 c:A S1 u:A a s1 t1"),
    # order of the ledger
    "time goes back": (Kind.CLOCK, "q:A R | T1 c:A S1 u:A -5 a s1 t1 I"),
    "a zombie's write": (Kind.CLOCK, "q:A R | T1 c:A S1 u:A | ^ recovered:2 v a s1 t1 I"),
    "an event without its fields": (Kind.UNREADABLE, f"{ANSWERED} | damaged"),
}
"""Each breaks one rule; where one break makes another (a lost message is also no rest), both are told."""


@pytest.mark.parametrize(("kind", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_ledger_is_found(kind: Kind, words: str) -> None:
    report = checked(words)
    assert report.count(kind) >= 1, report.sentences
    assert not report.sound
    assert all(sentence.startswith("session s: ") for sentence in report.sentences)


@pytest.mark.parametrize(("kind", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_told_once(kind: Kind, words: str) -> None:
    assert checked(words).count(kind) == 1


def test_two_messages_with_each_others_words_are_both_told() -> None:
    words = "qi:C,pay_Eve | q:A,pay_Bob R | T1 c:C,A S1 u:C,pay_Bob u:A,pay_Eve a s1 t1 I"
    report = checked(words)
    assert (report.altered, len(report.findings)) == (2, 2)
    assert "message A is admitted at seq 8 with other words than it had in the queue" in " ".join(report.sentences)


def test_where_a_hook_may_rewrite_what_it_admits_the_words_may_differ() -> None:
    words = "q:A,pay_Bob R | T1 c:A S1 u:A,pay_B. a s1 t1 I"
    assert checked(words).altered == 1
    assert checked(words, verbatim=False).sentences == []


def test_a_message_that_waits_at_rest_is_a_loss() -> None:
    report = checked("q:A R | q:B | T1 c:A S1 u:A a s1 t1 I")
    assert report.losses == 1
    assert "message B" in " ".join(report.sentences)


def test_a_ledger_that_goes_on_may_have_messages_that_wait() -> None:
    words = "q:A R | T1 c:A S1 u:A | q:B"
    assert checked(words, at_rest=False).sentences == []
    assert checked(words).losses == 1


def test_a_claimed_message_that_its_turn_forgets_is_a_loss() -> None:
    assert checked("qi:C | q:A R | T1 c:C,A S1 u:A a s1 t1 I").losses >= 1


def test_a_gap_is_found_wherever_it_is() -> None:
    whole = ledger(ANSWERED)
    for number in range(len(whole) - 1):
        report = check({"s": [*whole[:number], *whole[number + 1 :]]})
        assert report.count(Kind.SEQ) == 1, number


def test_an_id_may_come_again_when_it_was_forgotten() -> None:
    words = f"{ANSWERED} | +1000 q:A R | T2 c:A S1 u:A a s1 t2 I"
    assert checked(words, forget_after_ms=500).sentences == []
    assert checked(words, forget_after_ms=5000).duplicates == 1


def test_an_entry_that_is_no_event_of_ours_is_unreadable() -> None:
    entry_id, fields = raw(ledger("q:A"))[0]
    for bad in ((b"1-1", fields), (entry_id, {}), (entry_id, {**fields, b"data": b"\x02\x80"}), (b"x", fields)):
        with pytest.raises(Unreadable, match="cannot be read"):
            read([bad])


# -- what clients were told -----------------------------------------------------------------------------------


def test_a_receipt_whose_message_is_inside_is_true() -> None:
    assert checked(ANSWERED, told(("A", 1))).sentences == []


@pytest.mark.parametrize("receipt", [("B", 1), ("A", 2), ("B", 99)])
def test_a_receipt_without_its_message_is_a_loss(receipt: tuple[str, int]) -> None:
    assert checked(ANSWERED, told(receipt)).losses == 1


def sent(said: str, *cursors: int) -> Recorder:
    """A client that sent A with these words, and got a receipt for it: the first one, then duplicates."""
    seen = Recorder()
    for number, cursor in enumerate(cursors):
        times = {"sent_ms": number * 10, "answered_ms": number * 10 + 5}
        seen.receipt("s", "A", cursor, duplicate=number > 0, content=text(said), **times)
    return seen


WORDS = "q:A,pay_Bob R | T1 c:A S1 u:A,pay_Bob a s1 t1 I"


def test_words_that_are_queued_as_they_were_sent_are_kept() -> None:
    assert checked(WORDS, sent("pay_Bob", 1, 1)).sentences == []
    assert checked(WORDS, told(("A", 1))).sentences == []  # who does not say what it sent is believed


@pytest.mark.parametrize("said", ["pay_Eve", ""])
def test_other_words_queued_than_were_sent_are_told_once_however_often_they_were_confirmed(said: str) -> None:
    report = checked(WORDS, sent(said, 1, 1))
    assert report.sentences == ["session s: message A is queued at seq 1 with other words than were sent"]
    assert (report.altered, report.figures()["altered"]) == (1, 1)


def test_what_was_sent_is_what_was_queued_and_not_what_replaced_it() -> None:
    words = "q:A,pay_Bob R | replaced:A,pay_Eve | T1 c:A S1 u:A,pay_Eve a s1 t1 I"
    assert checked(words, sent("pay_Bob", 1)).sentences == []


def test_a_lost_message_is_not_altered_as_well() -> None:
    report = checked(WORDS, sent("pay_Eve", 99))
    assert (report.losses, report.altered) == (1, 0)


@pytest.mark.parametrize(("said", "altered"), [("pay_Eve", 0), ("pay_Bob", 1), ("", 1)])
def test_a_replacement_that_was_confirmed_has_the_words_that_were_sent(said: str, altered: int) -> None:
    seen = Recorder()
    seen.changed("s", "A", "replaced", sent_ms=0, answered_ms=1, content=text(said))
    words = "q:A,pay_Bob R | replaced:A,pay_Eve | T1 c:A S1 u:A,pay_Eve a s1 t1 I"
    assert checked(words, seen).altered == altered


def test_a_receipt_of_a_session_without_ledger_is_a_loss_unless_it_was_erased() -> None:
    seen = Recorder()
    seen.receipt("gone", "A", 1, sent_ms=0, answered_ms=1)
    assert check({}, seen).losses == 1
    seen.erased.add("gone")
    assert check({}, seen).sound


def test_a_message_that_was_confirmed_twice_is_lost_once() -> None:
    assert checked(ANSWERED, told(("B", 3), ("B", 3))).losses == 1


def test_a_refused_message_that_is_inside_is_a_false_refusal() -> None:
    seen = Recorder()
    seen.refused("s", "A", "store-refused", sent_ms=0, answered_ms=1)
    assert checked(ANSWERED, seen).false_refusals == 1


@pytest.mark.parametrize("otherwise", ["receipt", "unknown"])
def test_a_refusal_says_nothing_about_a_message_that_another_attempt_may_have_kept(otherwise: str) -> None:
    seen = Recorder()
    seen.refused("s", "A", "store-refused", sent_ms=0, answered_ms=1)
    if otherwise == "receipt":
        seen.receipt("s", "A", 1, sent_ms=2, answered_ms=3)
    else:
        seen.unknown("s", "A", sent_ms=2, answered_ms=3)
    assert checked(ANSWERED, seen).sentences == []


def test_a_refused_message_that_is_not_inside_was_refused_rightly() -> None:
    seen = Recorder()
    seen.refused("s", "B", "queue-full", sent_ms=0, answered_ms=1)
    report = checked(ANSWERED, seen)
    assert (report.sentences, report.refusals) == ([], {"queue-full": 1})


def test_an_unknown_outcome_may_be_either() -> None:
    seen = Recorder()
    seen.unknown("s", "A", sent_ms=0, answered_ms=1)
    seen.unknown("s", "B", sent_ms=0, answered_ms=1)
    report = checked(ANSWERED, seen)
    assert (report.sentences, report.unknowns) == ([], 2)


def test_who_sends_later_stands_later() -> None:
    words = "q:A R | q:B | T1 c:A S1 u:A a s1 t1 T2 c:B S1 u:B a s1 t2 I"
    assert checked(words, told(("A", 1), ("B", 3))).sentences == []
    assert checked(words, told(("B", 3), ("A", 1))).inversions == 1


def test_who_sends_at_the_same_time_may_stand_either_way() -> None:
    seen = Recorder()
    seen.receipt("s", "B", 3, sent_ms=0, answered_ms=10)
    seen.receipt("s", "A", 1, sent_ms=5, answered_ms=12)
    seen.receipt("s", "A", 1, sent_ms=20, answered_ms=21, duplicate=True)
    report = checked("q:A R | q:B | T1 c:A S1 u:A a s1 t1 T2 c:B S1 u:B a s1 t2 I", seen)
    assert (report.sentences, report.duplicate_receipts) == ([], 1)


def test_a_cancel_that_was_confirmed_is_in_the_ledger() -> None:
    seen = Recorder()
    seen.cancelled("s", 1, sent_ms=0, answered_ms=1)
    assert checked("q:A R | T1 c:A S1 u:A | cancel: | a s1 t1:aborted I", seen).sentences == []
    assert checked(ANSWERED, seen).count(Kind.UNKEPT) == 1


@pytest.mark.parametrize("what", ["withdrawn", "replaced", "moved"])
def test_a_change_that_was_confirmed_is_in_the_ledger(what: str) -> None:
    seen = Recorder()
    seen.changed("s", "A", what, sent_ms=0, answered_ms=1)
    end = "I" if what == "withdrawn" else "| T1 c:A S1 u:A a s1 t1 I"
    assert checked(f"q:A R | {what}:A {end}", seen).sentences == []
    assert checked(ANSWERED, seen).count(Kind.UNKEPT) == 1


# -- figures --------------------------------------------------------------------------------------------------


def test_the_figures_count_what_is_there() -> None:
    words = "q:A R | q:B | qi:C | T1 c:C,A S1 u:C u:A | +700 ^ recovered:2 | a s1 t1 T2 c:B rej:B t2:blocked I | qi:D"
    report = checked(words, told(("A", 1), ("B", 3)))
    assert report.sentences == []
    assert (report.sessions, report.messages, report.receipts, report.pending) == (1, 4, 2, 1)
    assert report.settled == {"admitted": 2, "rejected": 1}
    assert report.ends == {"completed": 1, "blocked": 1}
    assert (report.recovered, report.recovery_ms) == ({"crash": 1}, [701])
    assert (report.recovery_p50_ms, report.recovery_max_ms) == (701, 701)
    figures = report.figures()
    assert (figures["losses"], figures["duplicates"], figures["orderInversions"]) == (0, 0, 0)
    assert json.loads(json.dumps(figures)) == figures


def test_time_that_others_spent_writing_is_no_sign_of_the_owner() -> None:
    report = checked("q:A R | T1 c:A S1 u:A | +500 q:B | +500 ^ recovered:2 | a s1 t1 T2 c:B S1 u:B a s1 t2 I")
    assert report.recovery_ms == [1002]


def test_sessions_are_checked_each_for_itself() -> None:
    report = check({"s-1": ledger(ANSWERED), "s-2": ledger("q:A"), "s-3": ledger(ANSWERED)})
    assert {finding.session_id for finding in report.findings} == {"s-2"}
    assert report.sessions == 3


# -- independence ---------------------------------------------------------------------------------------------


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    allowed = {f"mailslot_services.verify.{module}" for module in INDEPENDENT} | {"mailslot_services.verify"}
    for module in INDEPENDENT:
        tree = ast.parse((ROOT / f"services/mailslot_services/verify/{module}.py").read_text())
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = {name for name in names if name.startswith("mailslot")}
            assert ours <= allowed, f"{module} imports {ours - allowed}"
