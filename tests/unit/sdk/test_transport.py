"""What a client is made with."""

import pytest

from mailslot import Client, Refused
from mailslot.transport import checked_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://mail.example/base/", "https://mail.example/base"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_may_have_a_path_and_a_slash(url: str, expected: str) -> None:
    assert checked_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://x", "http://", "redis://x:1", "http://x?y=1", "http://x#y"]
)
def test_what_is_no_address_is_refused_when_the_client_is_made(url: str) -> None:
    with pytest.raises(ValueError, match="the url must"):
        Client(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="must not hold a user") as caught:
        Client("http://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "tökén"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        Client("http://host", token)
    assert not token or token not in str(caught.value)


def test_a_session_without_an_id_gets_a_new_one() -> None:
    with Client() as client:
        assert client.session().id != client.session().id


def test_an_id_that_can_be_none_is_refused_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(Refused, match="must not be empty"):
        client.session("").status()
