"""The golden traces are all there, are made of valid events, and say what the specification says."""

import json
from pathlib import Path
from typing import Any

import pytest

from mailslot_contracts import parse_data, render

FOLDER = Path(__file__).parents[3] / "contracts" / "vectors"
VECTORS: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]

# Semantics section 11, row by row; `…` and `⟂` as there.
SECTION_11 = {
    1: "q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I",
    2: "q[A] R T1 c[A] S1 u[A] q[B] a s1 t1(completed) T2 c[B] S1 u[B] a s1 t2(completed) I",
    3: "… S1 u[A] qs[S] a s1 c[S] S2 u[S] a s2 t1(completed) I",
    4: "qs[C] … q[A] R T1 c[C,A] S1 u[C] u[A] a s1 t1(completed) I",
    5: "q[A] R T1 c[A] q[B] rej[A] t1(blocked) T2 c[B] S1 u[B] a s1 t2(completed) I",
    6: "… S1 u[A] s1 t1(error) T2 c[B] … t2(completed) I",
    7: "… S1 u[A] cancel a(interrupted) s1 t1(aborted user) T2 c[B] … I",
    8: "… cancel x[B] a(interrupted) s1 t1(aborted user) I",
    9: "… cancel held … t1(aborted user) I(held 1) q[C] released R T2 c[B] … t2(completed) T3 c[C] … I",
    10: "q[A] R T1 c[A] S1 u[A] recovered(1, attempt 2, crash) a s1 t1(completed) I",
    11: "… t1(completed) I q[g1] R T2 c[g1] S1 u[g1] a s1 t2(completed) I q[g2] R …",
    12: "… I q[g1] R q[H] x[g1 preempted] T2 c[H] … I q[g1'] R …",
    13: "q[A] R x[A] I",
    14: "… S1 u[A] llm/retry a s1 t1(completed) I",
    15: "q[A] R T1 c[A] cancel x[A] t1(aborted user) I",
    16: "q[A, notBefore] … due[A] R T1 c[A] … I",
}


def named(vectors: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[f"{each['id']:02d}" for each in vectors])


def fits(pattern: str, row: str) -> bool:
    """The pattern is the row with each `…` filled in by zero or more whole tokens."""
    rest = f" {pattern} "
    pieces = [piece.strip() for piece in row.split("…")]
    if not rest.startswith(f" {pieces[0]} ".replace("  ", " ")) or not rest.endswith(
        f" {pieces[-1]} ".replace("  ", " ")
    ):
        return False
    for piece in filter(None, pieces):
        at = rest.find(f" {piece} ")
        if at < 0:
            return False
        rest = rest[at + len(piece) + 1 :]
    return True


def test_all_sixteen_traces_are_there() -> None:
    assert [vector["id"] for vector in VECTORS] == list(SECTION_11)
    assert len(list(FOLDER.glob("*.json"))) == 16


@named(VECTORS)
def test_a_vector_reads_as_its_row_of_the_specification(vector: dict[str, Any]) -> None:
    pattern = " ".join(vector["pattern"])
    assert fits(pattern, SECTION_11[vector["id"]]), pattern
    assert vector["source"] == "semantics section 11"


@named(VECTORS)
def test_a_vector_renders_to_its_pattern(vector: dict[str, Any]) -> None:
    assert render(vector["history"]) == vector["pattern"]
    assert render([(event["type"], event["data"]) for event in vector["history"]]) == vector["pattern"]


@named(VECTORS)
def test_a_vector_is_made_of_valid_events_with_nothing_unknown(vector: dict[str, Any]) -> None:
    for event in vector["history"]:
        assert set(event) == {"seq", "type", "data"}
        data = parse_data(event["type"], event["data"])
        assert data.wire() == event["data"]
        assert not data.model_extra, event


@named(VECTORS)
def test_a_vector_counts_from_one_without_gaps_and_ends_at_idle(vector: dict[str, Any]) -> None:
    history = vector["history"]
    assert [event["seq"] for event in history] == list(range(1, len(history) + 1))
    assert history[-1]["data"].get("status") == "idle"
    assert "session/created" not in {event["type"] for event in history}


@named(VECTORS)
def test_in_a_vector_every_message_comes_to_one_end(vector: dict[str, Any]) -> None:
    ends = ("user/message", "inbox/cancelled", "inbox/rejected", "inbox/expired", "inbox/dead")
    queued = [e["data"]["messageId"] for e in vector["history"] if e["type"] == "inbox/queued"]
    ended = [e["data"]["messageId"] for e in vector["history"] if e["type"] in ends]
    assert sorted(queued) == sorted(ended)
    assert len(set(queued)) == len(queued)


@named(VECTORS)
def test_a_receipt_points_at_the_messages_own_queueing(vector: dict[str, Any]) -> None:
    queued = {
        event["data"]["messageId"]: event["seq"]
        for event in vector["history"]
        if event["type"] == "inbox/queued" and event["data"]["source"]["kind"] != "goal"
    }
    assert {each["messageId"]: each["cursor"] for each in vector["receipts"]} == queued
    assert all(set(each) == {"messageId", "cursor"} for each in vector["receipts"])


@named(VECTORS)
def test_a_run_is_the_interval_from_its_receipt_through_the_next_idle(vector: dict[str, Any]) -> None:
    history = vector["history"]
    cursors = {each["messageId"]: each["cursor"] for each in vector["receipts"]}
    for run in vector["runs"]:
        assert run["from"] == cursors[run["messageId"]]
        interval = history[run["from"] - 1 : run["to"]]
        idles = [event["seq"] for event in interval if event["data"].get("status") == "idle"]
        assert idles == [run["to"]]
        said = [e["data"]["content"][0]["text"] for e in interval if e["type"] == "assistant/message"]
        ends = [e["data"]["reason"]["kind"] for e in interval if e["type"] == "turn/end"]
        assert run["finalResponse"] == (said[-1] if said else "")
        assert run["finishReason"] == (ends[-1] if ends else None)


def test_every_waking_message_of_a_sender_has_a_run() -> None:
    for vector in VECTORS:
        waking = {
            event["data"]["messageId"]
            for event in vector["history"]
            if event["type"] == "inbox/queued" and event["data"]["wake"] and event["data"]["source"]["kind"] == "user"
        }
        assert {run["messageId"] for run in vector["runs"]} == waking
