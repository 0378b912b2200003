"""Tools: a Python function as something a model may call."""

import asyncio
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from mailslot.tools import tool as marked
from mailslot_contracts.codec import check_value
from mailslot_core.agent import Effect, Tool, ToolError
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker import call, offer, tools
from mailslot_services.agent_worker.call import BlockingCalls
from mailslot_services.agent_worker.models.text import within_bytes, without_surrogates
from mailslot_services.agent_worker.tools import load_tools, said, tool


class Unit(StrEnum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


def weather(
    city: Annotated[str, Field(description="Its name in English.")],
    day: date | None = None,
    unit: Unit = Unit.CELSIUS,
    days: int = 1,
) -> dict[str, Any]:
    """The weather of a city.

    Good for today and the days after.
    """
    return {"city": city, "day": day, "unit": unit, "days": days}


def described(**said_of_itself: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__mailslot_tool__ = said_of_itself  # type: ignore[attr-defined]
        return function

    return mark


async def run(function: Callable[..., object], effect_key: str = "key", **arguments: Any) -> str:
    return await tool(function).run(arguments, effect_key)


async def fails(function: Callable[..., object], **arguments: Any) -> ToolError:
    with pytest.raises(ToolError) as failed:
        await run(function, **arguments)
    return failed.value


# -- what the model sees ------------------------------------------------------------------------------------


def test_a_function_is_described_by_its_name_its_docstring_and_its_signature() -> None:
    made = tool(weather)
    assert made.spec.name == "weather"
    assert made.spec.description == "The weather of a city.\n\nGood for today and the days after."
    schema = made.spec.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["city"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["city"] == {"type": "string", "description": "Its name in English."}
    assert schema["properties"]["days"] == {"type": "integer", "default": 1}
    check_value(dict(schema))


def test_a_function_without_a_word_about_itself_is_unsafe_and_has_two_minutes() -> None:
    made = tool(weather)
    assert (made.effect, made.timeout_ms) == (Effect.UNSAFE, 120_000)


def test_a_function_may_say_more_about_itself() -> None:
    @described(name="look-up", effect="readonly", timeout_ms=50, blocking=False)
    def function() -> None: ...

    made = tool(function)
    assert (made.spec.name, made.effect, made.timeout_ms) == ("look-up", Effect.READONLY, 50)
    assert made.spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_parameters_may_have_any_name_that_python_takes() -> None:
    def function(schema: int, model_config: int, _private: int, json: int = 4) -> None: ...

    assert set(tool(function).spec.parameters["properties"]) == {"schema", "model_config", "_private", "json"}


def test_the_mark_that_the_sdk_makes_is_understood() -> None:
    @marked(effect="idempotent", name="look-up", timeout_ms=50, blocking=False)
    def function() -> None: ...

    made = tool(function)
    assert (made.spec.name, made.effect, made.timeout_ms) == ("look-up", Effect.IDEMPOTENT, 50)


def test_a_function_is_behind_the_port() -> None:
    port: Tool = tool(weather)
    assert port.spec.name == "weather"


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda: None, "'<lambda>' is no name for a tool"),
        (described(name="no spaces")(lambda: None), "'no spaces' is no name for a tool"),
        (described(effect="harmless")(lambda: None), "__mailslot_tool__.effect: input should be"),
        (described(timeout_ms=0)(lambda: None), "__mailslot_tool__.timeout_ms: input should be greater"),
        (described(colour="red")(lambda: None), "__mailslot_tool__.colour: is not known here"),
        (described(name="f")(lambda *args: None), "parameter args cannot be given by name"),
        (described(name="f")(lambda **kwargs: None), "parameter kwargs cannot be given by name"),
        (described(name="f")(lambda a, /: None), "parameter a cannot be given by name"),
    ],
)
def test_a_function_that_cannot_be_a_tool_says_why(function: Callable[..., object], complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint):
        tool(function)


def test_a_parameter_of_a_type_that_no_schema_can_say_is_refused() -> None:
    def function(lock: threading.Lock) -> None: ...

    def later(thing: "Unheard") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for unspeakable in (function, later):
        with pytest.raises(Misconfigured, match=f"tool {unspeakable.__name__}: "):
            tool(unspeakable)


# -- arguments ----------------------------------------------------------------------------------------------


async def test_arguments_arrive_as_the_types_of_the_signature_and_defaults_stay() -> None:
    got: list[Any] = []

    def function(day: date, unit: Unit, pair: tuple[int, str], many: list[int] | None = None) -> None:
        got.extend((day, unit, pair, many))

    await run(function, day="2026-02-03", unit="kelvin", pair=[1, "x"])
    assert got == [date(2026, 2, 3), Unit.KELVIN, (1, "x"), None]
    assert got[1] is Unit.KELVIN


async def test_arguments_that_do_not_fit_are_told_all_at_once_and_nothing_is_called() -> None:
    called: list[str] = []

    def function(city: str, days: int) -> None:
        called.append(city)

    error = await fails(function, days="many", colour="red")
    assert error.code == "bad-arguments"
    assert "city: is missing" in str(error)
    assert "days: input should be a valid integer" in str(error)
    assert "colour: is not known here" in str(error)
    assert called == []


async def test_the_effect_key_is_given_to_those_who_ask_and_hidden_from_the_model() -> None:
    def function(amount: int, effect_key: str) -> str:
        return f"{amount} {effect_key}"

    assert list(tool(function).spec.parameters["properties"]) == ["amount"]
    assert await run(function, "s/1/2/c1", amount=5) == "5 s/1/2/c1"
    with pytest.raises(ToolError, match="effect_key: is not known here"):
        await tool(function).run({"amount": 5, "effect_key": "the model's own"}, "s/1/2/c1")


# -- results ------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    text: str
    day: date


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "null"),
        (3, "3"),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
        (Answer(text="x", day=date(2026, 2, 3)), '{"text":"x","day":"2026-02-03"}'),
        ([Point(1, 0.5)], '[{"x":1,"y":0.5}]'),
        (Unit.KELVIN, "kelvin"),
        ("\ud83d", "\N{REPLACEMENT CHARACTER}"),
    ],
)
async def test_a_result_is_text_as_it_is_or_json(value: object, text: str) -> None:
    def function() -> object:
        return value

    result = await run(function)
    assert (type(result), result) == (str, text)


async def test_a_result_that_nothing_can_say_is_an_error() -> None:
    def function() -> object:
        return threading.Lock()

    error = await fails(function)
    assert (error.code, str(error)) == ("bad-result", "a result of type lock cannot be said as JSON")


def test_a_long_result_is_cut_off_with_a_note() -> None:
    text = said("ä" * 200_000)
    assert len(text.encode()) <= tools.RESULT_BYTES_MAX
    assert text.endswith("\n[cut off: 400000 bytes, the limit is 262144]")
    assert text.startswith("ä" * 130_000)


@given(st.text(max_size=400), st.integers(150, 500))
def test_a_cut_text_is_within_its_limit_and_an_uncut_one_is_itself(text: str, bytes_max: int) -> None:
    cut = within_bytes(text, bytes_max)
    assert len(cut.encode()) <= bytes_max
    assert (cut == text) is (len(text.encode()) <= bytes_max)


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=50))
def test_any_text_becomes_well_formed_and_good_text_stays(text: str) -> None:
    clean = without_surrogates(text)
    check_value(clean)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert clean == text


# -- failures -----------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Iterator[Callable[[], object]]:
    def in_a_thread() -> None:
        raise error

    @described(blocking=False)
    def on_the_loop() -> None:
        raise error

    async def later() -> None:
        raise error

    yield from (in_a_thread, on_the_loop, later)


async def test_whatever_a_function_raises_is_its_result() -> None:
    raised = [ValueError("no such city"), KeyError("x"), SystemExit(3), StopIteration(), RuntimeError()]
    told = ["ValueError: no such city", "KeyError: 'x'", "SystemExit: 3", "StopIteration", "RuntimeError"]
    for error, message in zip(raised, told, strict=True):
        for function in raising(error):
            failed = await fails(function)
            assert failed.code == "tool-failed"
            assert message in str(failed) or isinstance(error, StopIteration)


async def test_a_function_may_name_its_own_error() -> None:
    for function in raising(ToolError("out-of-stock", "none left")):
        error = await fails(function)
        assert (error.code, str(error)) == ("out-of-stock", "none left")


async def test_a_message_of_an_exception_is_bounded() -> None:
    for function in raising(ValueError("x" * 100_000)):
        assert len(str(await fails(function))) <= call.MESSAGE_CHARACTERS_MAX


async def test_a_function_cancelled_from_within_fails_and_does_not_cancel_its_caller() -> None:
    async def function() -> None:
        raise asyncio.CancelledError

    assert (await fails(function)).code == "tool-failed"


# -- time ---------------------------------------------------------------------------------------------------


async def test_a_function_that_takes_too_long_is_ended() -> None:
    ended = asyncio.Event()

    @described(timeout_ms=20)
    async def later() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    error = await fails(later)
    assert (error.code, str(error)) == ("tool-timeout", "later did not end within 20 ms")
    assert ended.is_set()


async def test_a_blocking_function_that_takes_too_long_is_left_behind() -> None:
    release = threading.Event()

    @described(timeout_ms=20)
    def stuck() -> None:
        release.wait(10)

    assert (await fails(stuck)).code == "tool-timeout"
    release.set()


async def test_a_function_that_ignores_being_told_to_stop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "CANCEL_GRACE_S", 0.02)
    release = asyncio.Event()

    @described(timeout_ms=20)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    asyncio.get_running_loop().call_later(5, release.set)  # so that a defect fails the test instead of hanging it
    error = await fails(stubborn)
    assert error.code == "tool-timeout"
    assert not release.is_set()
    release.set()


async def test_a_result_that_comes_while_a_function_is_told_to_stop_counts() -> None:
    @described(timeout_ms=20)
    async def finishing() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "money was sent"
        return ""

    assert await run(finishing) == "money was sent"


async def test_a_cancelled_caller_takes_the_function_with_it() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def function() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(run(function))
    await asyncio.wait_for(began.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert ended.is_set()


# -- threads ------------------------------------------------------------------------------------------------


async def test_blocking_functions_run_beside_the_loop_and_beside_each_other() -> None:
    together = threading.Barrier(3)
    loop_thread = threading.get_ident()

    def function() -> str:
        together.wait(10)
        return str(threading.get_ident() == loop_thread)

    assert await asyncio.gather(*(run(function) for _ in range(3))) == ["False"] * 3


async def test_a_function_that_never_blocks_may_say_so_and_run_on_the_loop() -> None:
    @described(blocking=False)
    def function() -> str:
        return threading.current_thread().name

    assert await run(function) == threading.current_thread().name


async def test_async_functions_are_found_behind_partials_and_objects() -> None:
    class Caller:
        async def __call__(self, text: str) -> str:
            return threading.current_thread().name + text

    async def function(text: str, end: str) -> str:
        return threading.current_thread().name + text + end

    name = threading.current_thread().name
    assert await tool(functools.partial(function, end="!"), "partial").run({"text": "x"}, "") == f"{name}x!"
    assert await tool(Caller(), "caller").run({"text": "x"}, "") == f"{name}x"


async def test_too_many_blocking_calls_are_refused_until_one_ends() -> None:
    calls, release = BlockingCalls(calls_max=1), threading.Event()
    first = calls.run(lambda: release.wait(10))
    with pytest.raises(ToolError) as busy:
        calls.run(lambda: None)
    assert busy.value.code == "tool-busy"
    release.set()
    assert await first
    assert await calls.run(lambda: "free again") == "free again"


async def test_a_stuck_function_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    program = (
        "import asyncio, threading\n"
        "from mailslot_services.agent_worker.tools import tool\n"
        "def stuck(): threading.Event().wait()\n"
        "stuck.__mailslot_tool__ = {'timeout_ms': 20}\n"
        "async def main():\n"
        "    try: await tool(stuck).run({}, '')\n"
        "    except Exception as error: print(error.code)\n"
        "asyncio.run(main())\n"
    )
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out) == (0, b"tool-timeout\n"), f"after {time.monotonic() - began:.1f} s"


# -- finding ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_own_tools.py").write_text(
        "def add(a: int, b: int) -> int:\n    return a + b\n\nclass Box:\n    @staticmethod\n    def open() -> str:\n"
        "        return 'empty'\n\nNUMBER = 7\n"
    )
    (tmp_path / "my_broken_tools.py").write_text("raise RuntimeError('not today')\n")
    return tmp_path


async def test_a_tool_is_found_by_its_module_beside_the_file(folder: Path) -> None:
    found = load_tools(["my_own_tools:add", "my_own_tools:Box.open"], folder)
    assert list(found) == ["add", "open"]
    assert await found["add"].run({"a": 2, "b": 3}, "") == "5"


async def test_a_tool_is_found_by_the_name_under_which_a_package_offers_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.append(str(folder))
    offers(monkeypatch, ("sum-up", "my_own_tools:add"))
    found = load_tools(["sum-up"], folder)
    assert json.loads(await found["sum-up"].run({"a": 2, "b": 3}, "")) == 5


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "absent",
            "no installed package offers a tool absent .* .offered: sum-up, twice.",
        ),
        ("twice", "tool twice is offered more than once"),
        ("no_such_module:f", "tool no_such_module:f cannot be imported: ModuleNotFoundError"),
        ("my_own_tools:no_such", "cannot be imported: AttributeError"),
        ("my_broken_tools:f", "cannot be imported: RuntimeError: not today"),
        ("my_own_tools:NUMBER", "tool my_own_tools:NUMBER is no function but int"),
        ("my_own_tools:Box", "is no function but type"),
    ],
)
def test_a_tool_that_is_not_there_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, complaint: str
) -> None:
    offers(monkeypatch, ("sum-up", "my_own_tools:add"), ("twice", "a:b"), ("twice", "c:d"))
    with pytest.raises(Misconfigured, match=complaint):
        load_tools([name], folder)


def test_two_tools_may_not_have_one_name(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="two tools are called add"):
        load_tools(["my_own_tools:add", "my_own_tools:add"], folder)


def offers(monkeypatch: pytest.MonkeyPatch, *named: tuple[str, str]) -> None:
    offered = EntryPoints(EntryPoint(name, value, tools.GROUP) for name, value in named)
    monkeypatch.setattr(offer, "entry_points", lambda group: offered.select(group=group))
