"""The tools of the agents in `agents.toml`: they take time, stand still, or kill their worker, and keep a diary.

The diary is a file with one line for each execution, so that a test can count executions whatever becomes of the
worker.
"""

import os
import signal
import threading
import time
from pathlib import Path

from mailslot.hooks import Batch
from mailslot.tools import tool

POISON = "poison at the gate"
DIARY = "CHAOS_DIARY"


def note(line: str) -> None:
    """One line, in one write, so that lines of several processes never mix."""
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(f"{line} {os.getpid()}\n")


def was_noted(words: str) -> bool:
    """Whether the words are in the diary."""
    diary = Path(os.environ[DIARY])
    return diary.exists() and words in diary.read_text()


@tool(effect="unsafe")
def block(tag: str, seconds: float, effect_key: str) -> str:
    """Blocks its thread."""
    note(f"block {tag} {effect_key}")
    time.sleep(seconds)
    return f"blocked for {tag}"


@tool(effect="idempotent")
def again(tag: str, seconds: float) -> str:
    """May be done again."""
    note(f"again {tag}")
    time.sleep(seconds)
    return f"done for {tag}"


@tool(effect="readonly")
def nap(tag: str, seconds: float) -> str:
    """Takes a moment."""
    note(f"nap {tag}")
    time.sleep(seconds)
    return f"napped for {tag}"


@tool(effect="readonly", blocking=False, timeout_ms=60_000)
def freeze(tag: str, seconds: float) -> str:
    """Says that it is quick and stands on the event loop, while a thread of the same process is as lively as ever."""
    done_before = was_noted(f"freeze {tag} ")
    note(f"freeze {tag}")
    threading.Thread(target=lambda: time.sleep(seconds), daemon=True).start()
    if not done_before:  # the next owner finishes it
        time.sleep(seconds)
    return f"frozen for {tag}"


@tool(effect="idempotent")
def trip(tag: str) -> str:
    """Kills its worker, the first time."""
    tripped = was_noted(f"trip {tag} ")
    note(f"trip {tag}")
    if not tripped:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"walked on {tag}"


@tool(effect="idempotent")
def die(tag: str) -> str:
    """Kills its worker, every time."""
    note(f"die {tag}")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def gate(batch: Batch) -> None:
    """Kills its worker over a poisonous message, which is claimed then and not admitted. There is an antidote."""
    if POISON in batch.text and not was_noted("antidote"):
        note("gate")
        os.kill(os.getpid(), signal.SIGKILL)
