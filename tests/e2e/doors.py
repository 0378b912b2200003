"""The three doors, each used as somebody would who has never seen our code.

    http        plain POSTs by an HTTP client
    redis-cli   the real `redis-cli`, one XADD with JSON
    sdk         the Python client

Each gives the id under which the message was sent or accepted.
"""

import json
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx2

from mailslot import Client
from mailslot_contracts import intake_message_id
from tests.e2e.house import House

INTAKE: Final = "mailslot:intake"


@dataclass(frozen=True)
class Letter:
    """One prompt of the file. `message_id` is the sender's own, or None to let the door make one."""

    session: str
    agent: str
    door: Literal["http", "redis-cli", "sdk"]
    text: str
    delivery: Literal["queue", "steer", "inject"] = "queue"
    message_id: str | None = None


def letters(file: Path) -> list[Letter]:
    """The prompts of the file; every second sender has an id of its own."""
    prompts = tomllib.loads(file.read_text(encoding="utf-8"))["prompt"]
    return [
        Letter(**prompt, message_id=f"letter-{number:02d}" if number % 2 else None)
        for number, prompt in enumerate(prompts, 1)
    ]


def by_http(house: House, letter: Letter) -> str:
    """Make the session with its agent, then send."""
    body: dict[str, Any] = {"content": letter.text, "delivery": letter.delivery}
    if letter.message_id:
        body["messageId"] = letter.message_id
    with httpx2.Client(base_url=house.url, trust_env=False) as client:
        made = client.post("/v1/sessions", json={"sessionId": letter.session, "agent": letter.agent})
        assert made.status_code in (200, 201), made.text
        answer = client.post(f"/v1/sessions/{letter.session}/prompt", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json().keys() == {"messageId", "cursor", "duplicate", "durability"}
    return str(answer.json()["messageId"])


def by_redis_cli(house: House, letter: Letter) -> str:
    """One XADD. What it prints is the entry's id, from which the message's own follows."""
    entry = {
        "sessionId": letter.session,
        "agent": letter.agent,
        "content": letter.text,
        "delivery": letter.delivery,
        **({"messageId": letter.message_id} if letter.message_id else {}),
    }
    words = ["redis-cli", "-p", str(house.store.port), "XADD", INTAKE, "*", "data", json.dumps(entry)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return letter.message_id or intake_message_id(done.stdout.strip())


def by_sdk(house: House, letter: Letter) -> str:
    """The client that a Python program would use."""
    with Client(house.url) as client:
        session = client.session(letter.session, agent=letter.agent)
        receipt = session.prompt(letter.text, message_id=letter.message_id, delivery=letter.delivery)
    return receipt.message_id


DOORS: Final[dict[str, Callable[[House, Letter], str]]] = {
    "http": by_http,
    "redis-cli": by_redis_cli,
    "sdk": by_sdk,
}


def send(house: House, letter: Letter) -> str:
    """Through the door that the letter names; the message's id."""
    return DOORS[letter.door](house, letter)
