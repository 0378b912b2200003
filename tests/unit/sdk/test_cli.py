"""The command line without a server: what makes no sense, what it says of itself, and how it finds services."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mailslot import (
    BadAnswer,
    Budgets,
    CursorExpired,
    Event,
    Goal,
    MessageRecord,
    OutcomeUnknown,
    Refused,
    RunResult,
    RunTimeout,
    TransportLost,
    cli,
)
from mailslot.cli import catalog, exits, line, moment, options, output, service, terminal
from mailslot.cli.exits import Exit

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[3]


def result(reason: str | None) -> RunResult:
    return RunResult("s", "m", "", reason, (), 1, 2, MessageRecord("m", "queued"))


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAILSLOT_URL", "MAILSLOT_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


# -- exit codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("completed", 0),
        ("max-tokens", 1),
        ("aborted", 1),
        ("blocked", 1),
        ("error", 1),
        ("interrupted", 1),
        ("some-new-kind", 1),
        ("", 1),
        (None, 3),
    ],
)
def test_only_a_last_turn_that_completed_is_success(reason: str | None, code: int) -> None:
    assert exits.of_result(result(reason)) == code


def test_errors_have_codes_of_their_own() -> None:
    errors = (Refused("closed", "no"), TransportLost("gone"), OutcomeUnknown("?"), CursorExpired("old"), BadAnswer("x"))
    assert [int(exits.of_error(error)) for error in errors] == [4, 5, 5, 5, 5]
    assert int(exits.of_error(RunTimeout("late"))) == 6


@pytest.mark.parametrize("where", ["docstring", "help", "docs"])
def test_the_exit_codes_are_the_same_wherever_they_are_written(where: str, capsys: Capture) -> None:
    if where == "docstring":
        text = cli.__doc__ or ""
    elif where == "docs":
        text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    else:
        assert cli.main(["run", "--help"]) == 0
        text = capsys.readouterr().out
    for code, meaning in exits.TABLE.items():
        assert re.search(rf"\b{int(code)}\b[ |]+{re.escape(meaning)}", text), (code, meaning)
    assert set(exits.TABLE) == set(Exit)


# -- usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["run"], "the task is blank"),
        (["run", "", "  "], "the task is blank"),
        (["run", "\n\t"], "the task is blank"),
        (["run", "--stdin", "words"], "not both"),
        (["run", "x", "--timeout", "0"], "not a duration above 0"),
        (["run", "x", "--timeout", "soon"], "not a duration above 0"),
        (["run", "x", "--timeout", "inf"], "not a duration above 0"),
        (["run", "x", "--timeout", "nan"], "not a duration above 0"),
        (["run", "x", "--sess", "s"], "unrecognized arguments"),
        (["run", "x", "--session", ""], "must not be empty"),
        (["run", "x", "--url", "redis://x"], "the url must look like"),
        (["run", "x", "--url", "http://me:pw@x"], "must not hold a user"),
        (["run", "x", "--token", "a b"], "printable ASCII"),
        (["run", "\udcff"], "the task is not UTF-8"),
        (["run", "x", "--session", "\udcff"], "an id must be UTF-8"),
        (["send", "hello"], "--session"),
        (["send", "--session", "s"], "the message is blank"),
        (["send", "--session", "s", "x", "--delivery", "pigeon"], "pigeon"),
        (["tail"], "name one session"),
        (["tail", "a", "--session", "b"], "name one session"),
        (["tail", "a", "--after", "-1"], "not a seq"),
        (["tail", "a", "-n", "some"], "not a count: a whole number from 0"),
        (["tail", "a", "--types", " , "], "name at least one type"),
        (["status"], "name one session"),
        (["cancel", "s", "--queue", "drop"], "drop"),
        (["cancel", "s", "--turn", "0"], "not a turn: a whole number from 1"),
        (["message", "s"], "required: message"),
        (["message", "s", "\udcff"], "an id must be UTF-8"),
        (["replace", "s", "m"], "the text is blank"),
        (["redrive"], "required: letter"),
        (["erase", "s"], "nobody can be asked here; say --yes"),
        (["goal", "set", "s"], "the objective is blank"),
        (["goal", "set", "s", "x", "--rounds", "0"], "not a budget: a whole number from 1"),
        (["goal", "set", "s", "x", "--cost", "nan"], "not an amount above 0"),
        (["goal", "edit", "s"], "say what to change"),
        (["goal", "sett", "s"], "there is no goal command 'sett'; did you mean set?"),
        (["goal"], "usage: mailslot goal"),
        (["send", "--session", "s", "x", "--in", "5m", "--not-before", "2026-01-31"], "not allowed with argument"),
        (["send", "--session", "s", "x", "--in", "soon"], "write 90, 90s, 5m, 1h30m or 2d"),
        (["send", "--session", "s", "x", "--not-before", "tomorrow"], "not a time"),
        (["send", "--session", "s", "x", "--expires-at", "1764554400"], "give milliseconds since 1970"),
        (["send", "--session", "s", "x", "--expect-turn", "one"], "not a turn"),
        (["send", "--session", "s", "x", "--delivry", "steer"], "did you mean --delivery?"),
        (["completion", "tcsh"], "tcsh"),
        (["tail", "a", "--after", "x"], "not a seq"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_code_2(argv: list[str], sentence: str, capsys: Capture) -> None:
    assert cli.main(argv) == Exit.USAGE
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(b"", "blank"), (b" \n", "blank"), (b"\xff\xfe", "stdin is not UTF-8"), (b"x" * (8 * 1024 * 1024 + 1), "8388608")],
    ids=["empty", "blank", "not-utf-8", "too-long"],
)
def test_stdin_that_makes_no_sense_is_refused(
    data: bytes, sentence: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, data)
    assert cli.main(["run", "--stdin"]) == Exit.USAGE
    assert sentence in capsys.readouterr().err


def test_help_starts_nothing_and_names_every_command(capsys: Capture) -> None:
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    for name in (*catalog.ROWS, "up", "ingest", "worker", "goals", "doctor", "verify"):
        assert re.search(rf"^  {name} +\w", said, re.MULTILINE), name


def test_without_a_command_it_says_what_there_is(capsys: Capture) -> None:
    assert cli.main([]) == Exit.USAGE
    assert "usage: mailslot" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "send", "tail"])
def test_every_command_explains_itself(command: str, capsys: Capture) -> None:
    assert cli.main([command, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "MAILSLOT_URL, default http://127.0.0.1:8080" in said
    assert "exit codes:" in said


def test_a_token_in_the_environment_is_in_no_help(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILSLOT_TOKEN", "s3cret")
    cli.main(["run", "--help"])
    assert "s3cret" not in capsys.readouterr().out


def test_the_version_is_the_installed_one(capsys: Capture) -> None:
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"mailslot \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_a_server_that_is_not_there_is_one_sentence_that_says_what_to_do(capsys: Capture) -> None:
    assert cli.main(["run", "hello", "--url", "http://127.0.0.1:1"]) == Exit.LOST
    said = capsys.readouterr().err
    assert "http://127.0.0.1:1" in said
    assert "mailslot up" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["rnu"], "did you mean mailslot run?"),
        (["statsu"], "did you mean mailslot status?"),
        (["docter"], "did you mean mailslot doctor?"),
        (["stop"], "here it is called mailslot cancel"),
        (["logs"], "here it is called mailslot tail -f"),
        (["fly"], "see mailslot --help"),
        (["run", "x", "--sesion", "s"], "did you mean --session?"),
        (["goal", "pasue", "s"], "did you mean pause?"),
    ],
)
def test_a_misspelt_word_suggests_the_right_one(argv: list[str], hint: str, capsys: Capture) -> None:
    assert cli.main(argv) == Exit.USAGE
    assert hint in capsys.readouterr().err


def test_a_command_that_is_called_otherwise_elsewhere_is_none_of_ours() -> None:
    assert not set(catalog.OTHER_WORDS) & {*catalog.ROWS, *service.KNOWN}


def test_help_of_a_command_is_the_same_either_way(capsys: Capture) -> None:
    assert cli.main(["help", "goal", "set"]) == 0
    one = capsys.readouterr().out
    assert cli.main(["goal", "set", "--help"]) == 0
    assert capsys.readouterr().out == one


def every_parser() -> list[options.Parser]:
    found = []
    for name in catalog.ROWS:
        loaded = catalog.load(name)
        commands = [loaded] if isinstance(loaded, options.Command) else [entry[1] for entry in loaded.commands.values()]
        found += [command.parser() for command in commands]
    return found


def test_every_command_shows_an_example_and_explains_every_option() -> None:
    for made in every_parser():
        assert "examples:\n  " in (made.epilog or ""), made.prog
        assert not [action.dest for action in made.options() + made.positionals() if not action.help], made.prog
        if "--url" in made.format_help():
            assert "--json" in made.format_help() or made.prog == "mailslot rpc", made.prog


def test_words_and_options_can_be_mixed_and_two_dashes_end_the_options() -> None:
    made = catalog.load("run")
    assert isinstance(made, options.Command)
    parsed = made.parser().parsed(["say", "--session", "s", "it", "--json"])
    assert (parsed.words, parsed.session, parsed.json) == (["say", "it"], "s", True)
    assert made.parser().parsed(["--json", "--", "--what", "is this?"]).words == ["--what", "is this?"]
    assert made.parser().parsed(["say", "--", "--what"]).words == ["say", "--what"]


def test_the_command_line_loads_a_command_only_when_it_is_called() -> None:
    code = "import sys; from mailslot.cli import main; main(['--version']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "mailslot.cli.catalog" in loaded.split()
    for module in ("httpx2", "argparse", "difflib", "mailslot.cli.run", "mailslot.cli.goal", "mailslot.rpc"):
        assert module not in loaded.split()


# -- services -----------------------------------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = {name: EntryPoint(name, value, service.GROUP) for name, value in points.items()}
    monkeypatch.setattr(service, "found", lambda: found)


def answering(argv: list[str]) -> int:
    return 40 + len(argv)


def test_a_service_gets_its_words_and_gives_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, worker=f"{__name__}:answering")
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _myself())
    assert cli.main(["worker", "--concurrency", "8"]) == 42


def _myself() -> Any:
    module = type(sys)(__name__)
    vars(module)["answering"] = answering
    return module


def test_a_service_that_is_not_installed_is_a_clear_sentence(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    assert cli.main(["up"]) == Exit.USAGE
    assert "the command up is not installed here" in capsys.readouterr().err
    assert cli.main(["fly"]) == Exit.USAGE
    assert "there is no command 'fly'" in capsys.readouterr().err
    cli.main(["--help"])
    assert "\n  up " not in capsys.readouterr().out


@pytest.mark.parametrize("value", ["no_such_package.here:command", "mailslot.cli:no_such_name"])
def test_a_service_that_is_broken_is_a_clear_sentence(
    value: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, ingest=value)
    assert cli.main(["ingest"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("mailslot: the command ingest cannot be loaded from")
    assert said.count("\n") == 1


def test_a_command_of_somebody_else_is_listed_and_called(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, weather="acme.weather:command")
    cli.main(["--help"])
    assert re.search(r"^  weather +from acme.weather:command$", capsys.readouterr().out, re.MULTILINE)


# -- what people see ----------------------------------------------------------------------------------------------


def test_text_of_others_cannot_steer_a_terminal() -> None:
    assert terminal.plain("a\x1b[2Jb\rc\x9b1m\td\ne\x7f") == "a\ufffd[2Jb\ufffdc\ufffd1m\td\ne\ufffd"
    assert terminal.one_line("a\x1b[2J\nb\u2028c", 80) == "a [2J b c"
    assert terminal.one_line("x" * 100, 10) == "x" * 9 + "…"


def test_an_event_is_one_readable_line() -> None:
    data = {
        "messageId": "m-7",
        "lane": "next-turn",
        "wake": True,
        "content": [{"type": "text", "text": "two\nlines \x1b[0m"}],
        "source": {"kind": "user"},
    }
    shown = line.readable(Event(12, "inbox/queued", 1_764_554_400_000, 3, data), coloured=False)
    assert re.fullmatch(
        r' +12  \d\d:\d\d:\d\d  inbox/queued +messageId=m-7 lane=next-turn wake=true source=user "two lines  \[0m"',
        shown,
    )


def test_what_has_no_short_form_is_left_out_of_the_line() -> None:
    data = {"turn": 1, "messageIds": ["a", "b"], "usage": {"inputTokens": 3}, "none": None, "empty": [], "deep": [[1]]}
    shown = line.readable(Event(3, "inbox/claimed", 1_764_554_400_000, 3, data), coloured=False)
    assert shown.endswith("turn=1 messageIds=a,b")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1.5", 1.5), ("250ms", 0.25), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("2d", 172_800.0)],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert moment.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1", "1e3", "inf", "nan", "5 m", "m", "5m3", "1_0", "٣", "99999d", "0s"])
def test_what_is_no_duration_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|longer than"):
        moment.duration_s(text)


def test_a_moment_is_milliseconds_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert moment.moment_ms("1764554400000") == 1_764_554_400_000
    assert moment.moment_ms("2026-01-31T09:00Z") == 1_769_850_000_000
    assert moment.moment_ms("2026-01-31T10:00+01:00") == 1_769_850_000_000
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        assert moment.moment_ms("2026-01-31T11:00") == 1_769_850_000_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "0", "20260131", "1764554400", "9" * 16, "9" * 5000, "tomorrow", "2026-13-01", "0001-01-01", "12:00"]
)
def test_what_is_no_moment_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|milliseconds"):
        moment.moment_ms(text)


def test_a_value_is_written_as_the_protocol_names_it() -> None:
    goal = Goal("g", 1, "x", "active", 0, Budgets(model_calls=3, wall_seconds=60), Budgets())
    assert output.wire(goal) == {
        "goalId": "g", "revision": 1, "objective": "x", "phase": "active", "rounds": 0,
        "budgets": {"modelCalls": 3, "wallSeconds": 60}, "spent": {},
    }  # fmt: skip
    assert output.wire({"as_it_is": [Budgets(turns=1)]}) == {"as_it_is": [{"turns": 1}]}


def test_json_is_json_whatever_the_encoding_of_stdout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        data = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding, errors="backslashreplace"))
        output.put_json({"text": "🙂\u2028\ud800é"})
        assert json.loads(data.getvalue().decode(encoding)) == {"text": "🙂\u2028\ud800é"}, encoding


def test_only_the_last_column_is_cut_and_however_narrow_it_is_still_there() -> None:
    rows = [["ID", "TEXT"], ["a-long-identifier", "x" * 100], ["b", ""]]
    assert output.aligned(rows, 40) == [
        "ID                 TEXT",
        "a-long-identifier  " + "x" * 23 + "…",
        "b",
    ]
    assert output.aligned(rows, 60)[1] == "a-long-identifier  " + "x" * 40 + "…"


def test_the_colour_of_an_event_says_whether_it_went_well() -> None:
    kinds = {"completed": "green", "error": "red", "some-new-kind": "red"}
    for kind, colour in kinds.items():
        assert line.colour_of(Event(1, "turn/end", 0, 1, {"turn": 1, "reason": {"kind": kind}})) == colour
    assert line.colour_of(Event(1, "turn/end", 0, 1, {"reason": "odd"})) == "red"
    assert line.colour_of(Event(1, "inbox/held", 0, 1, {})) == "blue"
    assert line.colour_of(Event(1, "some/new", 0, 1, {})) is None


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_is_for_terminals_only_and_gone_at_the_end() -> None:
    shown, piped = Tty(), io.StringIO()
    for stream in (shown, piped):
        with terminal.StatusLine(stream) as status:
            status.show("turn 1")
    assert "turn 1 (0 s)" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[2K")
    assert piped.getvalue() == ""


def interrupted(_argv: Any) -> int:
    raise KeyboardInterrupt


def test_ctrl_c_is_quiet_and_has_its_code(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "load", lambda _name: interrupted)
    assert cli.main(["run", "x"]) == 130
    assert capsys.readouterr() == ("", "")
