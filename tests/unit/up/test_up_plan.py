"""What `mailslot up` decides before it starts anything."""

import socket
from pathlib import Path
from typing import Any

import pytest

from mailslot_core.errors import CoreError, Misconfigured
from mailslot_services.up import UpSettings, checked_agents, checked_port, hello, plan, reachable, store_words

STORE = "redis://127.0.0.1:7000/0"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MAILSLOT_REDIS_URL", "MAILSLOT_DURABILITY", "MAILSLOT_PORT", "MAILSLOT_AGENTS"):
        monkeypatch.delenv(name, raising=False)


def env_of(name: str, **options: Any) -> dict[str, str]:
    planned = plan(UpSettings(**options), STORE, 8080, "", drain_ms=30_000)
    (service,) = [each for each in planned.services if each.name == name]
    return dict(service.env)


def test_nothing_needs_to_be_configured() -> None:
    settings = UpSettings()
    assert (settings.host, settings.port, settings.state_dir) == ("127.0.0.1", 8080, ".mailslot")
    assert (settings.workers, settings.ephemeral, settings.redis_url) == (1, False, "")


def test_services_stand_in_the_order_in_which_they_are_drained() -> None:
    planned = plan(UpSettings(workers=3), STORE, 8080, "", drain_ms=30_000)
    assert [each.name for each in planned.services] == ["ingest", "worker 1", "worker 2", "worker 3", "goals"]
    assert [each.name for each in planned.probes] == [each.name for each in planned.services]


def test_all_services_get_the_same_store_and_the_level_that_the_screen_states() -> None:
    for name in ("ingest", "worker 1", "goals"):
        env = env_of(name)
        assert env["MAILSLOT_REDIS_URL"] == STORE
        assert env["MAILSLOT_DURABILITY"] == "memory"


def test_a_level_that_was_asked_for_reaches_the_services() -> None:
    assert env_of("ingest", durability="fsync")["MAILSLOT_DURABILITY"] == "fsync"


def test_each_service_has_metrics_on_a_port_of_its_own() -> None:
    planned = plan(UpSettings(workers=2), STORE, 8080, "", drain_ms=30_000)
    ports = [each.port for each in planned.probes]
    assert len(set(ports)) == len(ports)


def test_a_worker_may_take_longer_to_end_than_it_needs_to_drain() -> None:
    planned = plan(UpSettings(), STORE, 8080, "", drain_ms=30_000)
    (worker,) = [each for each in planned.services if each.name == "worker 1"]
    assert worker.drain_s > 30


def test_an_agents_file_in_this_folder_is_used_without_being_named(tmp_path: Path) -> None:
    assert checked_agents(UpSettings()) == ""
    (tmp_path / "agents.toml").touch()
    assert checked_agents(UpSettings()) == "agents.toml"


def test_an_agents_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").touch()
    with pytest.raises(Misconfigured, match=r"there is no file other\.toml: give another --agents"):
        checked_agents(UpSettings(agents="other.toml"))


def test_a_taken_port_is_refused_with_the_option_that_helps() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(CoreError, match=f"port {port} of 127.0.0.1 cannot be used .*--port"):
            checked_port(UpSettings(port=port))
        with pytest.raises(CoreError, match="--port"):
            checked_port(UpSettings(port=port, host="0.0.0.0"))


def test_a_host_that_does_not_exist_is_refused_with_the_option_that_helps() -> None:
    with pytest.raises(CoreError, match=r"there is no address no\.such\.host\.invalid .*--host"):
        checked_port(UpSettings(host="no.such.host.invalid"))


def test_port_0_takes_a_free_one() -> None:
    assert checked_port(UpSettings(port=0)) > 0


@pytest.mark.parametrize(
    ("options", "port", "ends"),
    [
        ({}, 8080, ' run "hello"'),
        ({}, 9000, ' run --url http://127.0.0.1:9000 "hello"'),
        ({"host": "0.0.0.0"}, 8080, ' run "hello"'),
        ({"host": "::1"}, 8080, ' run --url http://[::1]:8080 "hello"'),
        ({"host": "192.0.2.7"}, 8080, ' run --url http://192.0.2.7:8080 "hello"'),
    ],
)
def test_the_command_to_copy_names_the_url_only_when_it_must(options: dict[str, Any], port: int, ends: str) -> None:
    assert hello(UpSettings(**options), port).endswith(ends)


def test_the_command_to_copy_is_the_plain_name_when_the_path_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mailslot"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hello(UpSettings(), 8080) == 'mailslot run "hello"'


def test_a_wildcard_address_is_shown_as_one_that_can_be_typed() -> None:
    assert [reachable(host) for host in ("0.0.0.0", "::", "127.0.0.1", "::1")] == [
        "127.0.0.1",
        "::1",
        "127.0.0.1",
        "::1",
    ]


def test_a_password_is_not_shown() -> None:
    settings = UpSettings(redis_url="rediss://user:secret@store.example:6380/0")
    assert store_words(settings, None) == "rediss://store.example:6380/0"
