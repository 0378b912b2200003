"""How services start and end: options by flag and environment, one-line complaints, signals, one-line logs."""

import logging
import os
import signal
import subprocess
import sys
from typing import Any, Final
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from mailslot_core.errors import CoreError
from mailslot_core.settings import IngestSettings
from mailslot_services import boot
from tests.servers import free_port

PROG: Final = "mailslot ingest"

SERVICE: Final = """
import asyncio, sys
from mailslot_core.errors import Misconfigured
from mailslot_services import boot

async def serve(stop):
    if sys.argv[1] == "misconfigured":
        raise Misconfigured("the server may evict keys: set maxmemory-policy noeviction")
    print("up", flush=True)
    await stop.wait()
    print("draining", flush=True)
    if sys.argv[1] == "stuck":
        await asyncio.Event().wait()
    return 7 if sys.argv[1] == "seven" else None

sys.exit(boot.run_until_signal(serve))
"""


def parse(*argv: str) -> IngestSettings:
    return boot.parse(IngestSettings, argv, prog=PROG, description="The doors.")


def test_a_flag_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parse().port, parse().intake) == (8080, True)
    monkeypatch.setenv("MAILSLOT_PORT", "1")
    monkeypatch.setenv("MAILSLOT_INTAKE", "false")
    assert (parse().port, parse().intake) == (1, False)
    assert (parse("--port", "2", "--intake").port, parse("--intake").intake) == (2, True)


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["--port", "x"], {}, ["--port", "'x'"]),
        (["--port", "99999"], {}, ["--port", "65535"]),
        ([], {"MAILSLOT_PORT": "-1"}, ["MAILSLOT_PORT", "'-1'"]),
        (["--durability", "hope"], {}, ["--durability", "'fsync'"]),
        (["--nonsense"], {}, ["--nonsense"]),
        (["stray"], {}, ["stray"]),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    argv: list[str],
    env: dict[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"{PROG}: ")
    assert said.count("\n") == 1
    assert all(word in said for word in words), said


def test_help_names_every_option_with_its_environment_name_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, field in IngestSettings.model_fields.items():
        assert boot.flag_name(name) in said
        default = "none" if field.default == "" else field.default
        assert f"[{boot.env_name(IngestSettings, name)}, default: {default}]" in said
        assert (field.description or "?") in said


def start(what: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", SERVICE, what], **pipes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("what", "code"), [("plain", 0), ("seven", 7)])
def test_a_signal_asks_the_service_to_end_in_order(number: signal.Signals, what: str, code: int) -> None:
    with start(what) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, number)
        assert process.stdout.readline() == "draining\n"
        assert process.wait(10) == code


def test_a_second_signal_ends_it_at_once() -> None:
    with start("stuck") as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 128 + signal.SIGINT


def test_a_service_that_cannot_be_started_says_why_in_one_line() -> None:
    with start("misconfigured") as process:
        out, err = process.communicate(timeout=10)
        assert (out, process.returncode) == ("", 1)
        assert err == "mailslot: the server may evict keys: set maxmemory-policy noeviction\n"


def test_one_log_record_is_one_line() -> None:
    with pytest.raises(ValueError, match="invalid") as caught:
        int("line one\nline two")
    cause = (caught.type, caught.value, caught.tb)
    record = logging.LogRecord("mailslot.x", logging.INFO, "", 0, "two\nlines %s", ("é",), cause)
    record.session, record.note = "s", 'a "b" c'
    line = boot.LineFormatter().format(record)
    assert "\n" not in line
    assert " info mailslot.x " in line
    assert ' session=s note="a \\"b\\" c" exception="Traceback' in line


def test_metrics_are_served_on_their_port_and_on_none_when_it_is_0() -> None:
    registry, port = CollectorRegistry(), free_port()
    Gauge("a_gauge", "a gauge", registry=registry).set(3)
    with boot.serve_metrics(registry, 0):
        pass
    with boot.serve_metrics(registry, port):
        with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            assert b"a_gauge 3.0" in response.read()
        with (
            pytest.raises(CoreError, match=f"cannot serve metrics on 127.0.0.1:{port}"),
            boot.serve_metrics(registry, port),
        ):
            pass
