"""What `mailslot verify` is asked, and where it goes."""

import pytest
from pydantic import ValidationError
from redis.asyncio.connection import parse_url

from mailslot_services.verify.database import shown, with_database
from mailslot_services.verify.settings import VerifySettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60s", 60), ("2m", 120), ("500ms", 0.5), ("1h", 3600), ("1.5s", 1.5), ("7", 7), (" 3 S ", 3)],
)
def test_a_duration_says_its_unit_or_means_seconds(text: str, expected: float) -> None:
    settings = VerifySettings(chaos=text)
    assert (settings.chaos_s, settings.load_s) == (expected, expected)


@pytest.mark.parametrize("text", ["", "s", "-1s", "nan", "1e9", "25h", "5 weeks", "60s60s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        VerifySettings(chaos=text)


@pytest.mark.parametrize("settings", [VerifySettings(load="5s"), VerifySettings(load="5s", chaos="0s")])
def test_without_faults_the_load_has_its_own_length(settings: VerifySettings) -> None:
    assert (settings.chaos_s, settings.load_s) == (0, 5)


URLS = {
    "redis://localhost": "redis://localhost/15?client_name=n",
    "redis://localhost:1/0": "redis://localhost:1/15?client_name=n",
    "rediss://u:p%2Fw@host:6380/3?ssl_cert_reqs=none": "rediss://u:p%2Fw@host:6380/15?ssl_cert_reqs=none&client_name=n",
    "redis://host?db=4&client_name=me": "redis://host/15?client_name=n",
    "unix:///run/redis.sock?db=2": "unix:///run/redis.sock?client_name=n&db=15",
    "redis://[::1]:6379/0": "redis://[::1]:6379/15?client_name=n",
}


@pytest.mark.parametrize(("url", "expected"), URLS.items())
def test_another_database_of_the_same_server_keeps_everything_else(url: str, expected: str) -> None:
    found = with_database(url, 15, "n")
    assert found == expected
    before, after = dict(parse_url(url)), dict(parse_url(found))
    assert (after["db"], after["client_name"]) == (15, "n")
    same = before.keys() - {"db", "client_name"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_password_is_never_shown() -> None:
    assert shown("rediss://u:secret@host:1/15?client_name=n") == "rediss://host:1/15"
