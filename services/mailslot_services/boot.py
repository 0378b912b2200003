"""How every service starts and ends: settings in, one process, a signal, out.

    argv + environment --parse--> settings --> log_to_stderr --> run_until_signal(serve) --> exit code
                                                                   |   ^
                                              SIGTERM, SIGINT: stop.set()

Rule 1: an option has one name: field `redis_url` is the flag `--redis-url` and the environment name
        `MAILSLOT_REDIS_URL`. A flag wins over the environment, the environment over the default.
Rule 2: what cannot be started says why in one line on stderr and ends with a code: 2 for a wrong option,
        1 for a server that cannot give what is configured.
Rule 3: the first signal asks the service to end in order, the second one ends it at once.
Rule 4: a task that is ended has ended (`end`): nothing of a service runs on behind its back.
Rule 5: one log record is one line: `<time> <level> <logger> <message> key=value ...`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from prometheus_client import CollectorRegistry, start_http_server
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined
from pydantic_settings import BaseSettings, SettingsError

from mailslot_core.errors import CoreError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNALLED = 128  # plus the signal's number, as shells say it, when a second signal ended the process


METRICS_HOST = "127.0.0.1"
SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("mailslot.boot")

S = TypeVar("S", bound=BaseSettings)
Serve = Callable[[asyncio.Event], Awaitable[int | None]]
"""A service: runs until the event is set, then ends in order. Its number, if any, is the exit code."""


# -- options ------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see --help)\n")


def parse(settings: type[S], argv: Sequence[str], *, prog: str, description: str) -> S:
    """The settings that the flags, the environment and the defaults give; ends the process when they give none."""
    parser = _Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, field in settings.model_fields.items():
        _add_option(parser, name, field, env_name(settings, name))
    flags = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    try:
        return settings(**flags)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parser.error(_complaint(settings, first, flags))
    except SettingsError as error:
        parser.error(str(error))


def env_name(settings: type[BaseSettings], name: str) -> str:
    """The environment name of a field: its alias, where it has one, by which an error names it too."""
    field = settings.model_fields.get(name)
    alias = field.validation_alias if field else name
    return alias if isinstance(alias, str) else f"{settings.model_config.get('env_prefix', '')}{name}".upper()


def flag_name(name: str) -> str:
    """The flag of a field. A field that must not be called `json` is called `json_`."""
    return "--" + name.rstrip("_").replace("_", "-")


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo, env: str) -> None:
    text = f"{field.description or name} [{env}, default: {_default(field)}]".replace("%", "%%")
    if field.annotation is bool:
        parser.add_argument(flag_name(name), dest=name, action=argparse.BooleanOptionalAction, help=text, default=None)
    else:
        parser.add_argument(flag_name(name), dest=name, metavar=_metavar(field), help=text, default=None)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "none, must be given"
    return "none" if field.default in ("", None) else str(field.default)


def _metavar(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not None and all(isinstance(word, str) for word in get_args(field.annotation)):
        return "{" + ",".join(get_args(field.annotation)) + "}"
    return "N" if field.annotation in (int, float) else "TEXT"


def _complaint(settings: type[BaseSettings], first: ErrorDetails, flags: dict[str, Any]) -> str:
    name = str(first["loc"][0]) if first["loc"] else ""
    if not name:
        return first["msg"]
    given = flag_name(name) if name in flags else env_name(settings, name)
    return f"{given}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"


# -- logging ------------------------------------------------------------------------------------------------

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LineFormatter(logging.Formatter):
    """One record, one line. What was passed as `extra` follows as key=value; a traceback is one value."""

    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        words = [self.formatTime(record), record.levelname.lower(), record.name, _one_line(record.getMessage())]
        words += [f"{key}={_value(value)}" for key, value in vars(record).items() if key not in _STANDARD]
        if record.exc_info:
            words.append(f"exception={_value(self.formatException(record.exc_info))}")
        return " ".join(words)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - its base's name
        """UTC, to the millisecond."""
        self.converter = _utc
        return super().formatTime(record, datefmt)


def log_to_stderr(level: str) -> None:
    """All loggers of this process write lines to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def _utc(seconds: float | None) -> Any:
    import time  # noqa: PLC0415 - `logging` wants a function that gives a struct_time

    return time.gmtime(seconds)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _value(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(' "=') & set(text) else json.dumps(text)


# -- running ------------------------------------------------------------------------------------------------


def run_until_signal(serve: Serve) -> int:
    """Run a service on a fresh event loop until it ends by itself or by a signal; the exit code (rules 2, 3)."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_until_signal(serve))
    except CoreError as error:
        sys.stderr.write(f"mailslot: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_SIGNALLED + signal.SIGINT


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_signal(serve: Serve) -> int:
    stop = asyncio.Event()
    received: list[signal.Signals] = []
    service = asyncio.ensure_future(serve(stop))

    def ask(number: signal.Signals) -> None:
        received.append(number)
        if stop.is_set():
            service.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, ask, number)
    try:
        return await service or EXIT_OK
    except asyncio.CancelledError:
        if len(received) < 2:
            raise
        log.warning("ended at once by a second signal", extra={"signal": received[-1].name})
        return EXIT_SIGNALLED + received[-1]
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


# -- metrics ------------------------------------------------------------------------------------------------


@contextmanager
def serve_metrics(registry: CollectorRegistry, port: int) -> Iterator[None]:
    """`/metrics` answers on METRICS_HOST:port while the context is open; port 0 serves none."""
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=METRICS_HOST, registry=registry)
    except OSError as error:
        raise CoreError(f"cannot serve metrics on {METRICS_HOST}:{port}: {error.strerror}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
