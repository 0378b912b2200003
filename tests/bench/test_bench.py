"""The measurements themselves: that all of them run, and that a wrong ledger is not measured as a fast one.

No figure is compared with a bound here: how fast a machine is, is no property of the product.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mailslot_core.memory import MemoryStore
from tests.bench.audit import audit, expected
from tests.bench.figure import FIGURES, RATIOS, check_names, percentile, shown, summaries, table
from tests.bench.traffic import BORN, message_of, session_of, submission
from tests.echo_worker import EchoWorker
from tests.servers import redis70_binary

ROOT = Path(__file__).parent.parent.parent
RUN_S_MAX = 400.0
"""Half a minute, on a machine that nobody else uses."""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX + 20)
def test_one_run_gives_every_figure_and_says_what_machine_it_was_on(tmp_path: Path) -> None:
    redis70_binary()
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    names = {figure.name for group in FIGURES.values() for figure in group} | {ratio.name for ratio in RATIOS}
    assert result["figures"].keys() == names
    # the kernel counts CPU in steps of 10 ms, which is more than tiny counts take
    measured = {name: figure["median"] for name, figure in result["figures"].items() if figure["unit"] != "us"}
    assert all(value > 0 for value in measured.values()), measured
    assert result["cores"] > 0
    assert result["server"].startswith("redis 7.0")
    for figure in result["figures"].values():
        assert figure["title"] in done.stdout


def test_a_figure_is_the_median_over_the_rounds_and_a_ratio_is_made_inside_each() -> None:
    rounds = [
        {"live1_per_s": 4000.0, "faststream_per_s": 1000.0},
        {"live1_per_s": 1000.0, "faststream_per_s": 500.0},
        {"live1_per_s": 9000.0, "faststream_per_s": 3000.0},
    ]
    groups = summaries(rounds)
    live = groups["end to end, echo model, 128 sessions, ledgers audited"]["live1_per_s"]
    ratio = groups["ratios, measured side by side"]["live_ratio"]
    assert (live.median, ratio.median, ratio.values) == (4000.0, 3.0, (4.0, 2.0, 3.0))
    assert ">= 2 reached" in table(groups)


def test_an_aim_that_was_missed_is_called_missed() -> None:
    assert "< 3 MISSED" in table(summaries([{"start_p50": 3.5}]))


def test_a_figure_that_nobody_explained_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="made_up"):
        check_names({"http_per_s": 1.0, "made_up": 2.0})


@pytest.mark.parametrize(("share", "found"), [(0.5, 51), (0.99, 100), (0.0, 1), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share: float, found: int) -> None:
    assert percentile(range(1, 101), share) == found


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (99.5, "99.5"), (3.0, "3"), (0.456, "0.46")])
def test_numbers_are_shown_as_people_read_them(value: float, text: str) -> None:
    assert shown(value) == text


async def answered(store: MemoryStore, count: int) -> None:
    for number in range(count):
        await store.submit(session_of(number), submission(message_of(number)), BORN)
    await EchoWorker(store).answer_all()


async def test_ledgers_in_which_each_message_was_admitted_once_pass_the_audit() -> None:
    store = MemoryStore()
    await answered(store, 130)
    # a session's creation and ten events for its first message; the second message of two of them needs no new status
    assert await audit(store, expected(130)) == 128 * 11 + 2 * 8


async def test_a_message_that_is_not_in_its_ledger_fails_the_audit() -> None:
    store = MemoryStore()
    await answered(store, 130)
    with pytest.raises(AssertionError, match="inbox/queued of 2 messages, 3 sent"):
        await audit(store, {"s0": [*expected(130)["s0"], "lost"]})


async def test_a_message_that_still_waits_fails_the_audit() -> None:
    store = MemoryStore()
    await store.submit("s0", submission("m0"), BORN)
    with pytest.raises(AssertionError, match="user/message of 0 messages, 1 sent"):
        await audit(store, expected(1))
