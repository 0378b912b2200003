"""What a provider says and how it fails, in the words of the `Model` port."""

import httpx2
import pytest
from pydantic_ai import exceptions, messages

from mailslot_core.agent import Finish, ModelError, Request, UserEntry
from mailslot_services.agent_worker.models import direct

REQUEST = Request([UserEntry([{"type": "text", "text": "hello"}])])


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (exceptions.ModelTimeoutError("m", "slow"), "timeout", True),
        (exceptions.ModelRequestTimeout("m", 5.0), "timeout", True),
        (exceptions.ModelConnectionError("m", "reset"), "connection", True),
        (httpx2.ReadTimeout("slow"), "timeout", True),
        (httpx2.RemoteProtocolError("cut"), "connection", True),
        (exceptions.ContentFilterError("no"), "content-filter", False),
        (exceptions.UnexpectedModelBehavior("odd"), "bad-response", True),
        (exceptions.ModelAPIError("m", "odd"), "bad-response", True),
        (exceptions.UserError("this model takes no images"), "bad-request", False),
        (exceptions.ModelHTTPError(402, "m"), "quota-exceeded", False),
        (exceptions.ModelHTTPError(499, "m"), "bad-request", False),
        (exceptions.ModelHTTPError(599, "m"), "provider-error", True),
    ],
)
def test_every_failure_has_one_meaning(error: Exception, code: str, retryable: bool) -> None:
    told = direct.to_model_error(error, "openai:m")
    assert (told.code, told.retryable, told.retry_after_ms) == (code, retryable, None)
    assert str(told).startswith("openai:m: ")


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"Retry-After": "2"}, 2_000),
        ({"retry-after-ms": "1500.2"}, 1_501),
        ({"Retry-After": "999999999"}, direct.RETRY_AFTER_MS_MAX),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0),
        ({"Retry-After": "soon"}, None),
    ],
)
def test_a_wait_that_was_asked_for_is_passed_on_within_reason(headers: dict[str, str], wait_ms: int | None) -> None:
    error = direct.to_model_error(exceptions.ModelHTTPError(429, "m", headers=headers), "openai:m")
    assert error.retry_after_ms == wait_ms


def test_the_provider_is_quoted_in_its_own_words_and_not_at_length() -> None:
    body = {"error": {"message": "slow \ud83d down " + "x" * 10_000, "type": "rate_limit_error"}}
    error = direct.to_model_error(exceptions.ModelHTTPError(429, "m", body), "openai:m")
    assert str(error).startswith("openai:m: status 429, slow \N{REPLACEMENT CHARACTER} down xxx")
    assert len(str(error)) <= direct.MESSAGE_CHARACTERS_MAX


def said(text: str, finish_reason: messages.FinishReason | None) -> messages.ModelResponse:
    return messages.ModelResponse([messages.TextPart(text)] if text else [], finish_reason=finish_reason)


def test_an_answer_that_the_filter_stopped_is_kept_as_far_as_it_came() -> None:
    answer = direct.to_answer(said("half", "content_filter"), REQUEST, "openai:m")
    assert (answer.text, answer.finish) == ("half", Finish.STOP)
    with pytest.raises(ModelError) as failed:
        direct.to_answer(said("", "content_filter"), REQUEST, "openai:m")
    assert (failed.value.code, failed.value.retryable) == ("content-filter", False)


def test_an_answer_that_ends_in_an_error_or_without_a_reason_is_none() -> None:
    reasons: list[messages.FinishReason | None] = ["error", None]
    for reason in reasons:
        with pytest.raises(ModelError) as failed:
            direct.to_answer(said("half", reason), REQUEST, "openai:m")
        assert (failed.value.code, failed.value.retryable) == ("bad-response", True)


def test_a_reason_that_the_library_does_not_know_yet_is_a_reason() -> None:
    response = said("whole", None)
    response.provider_details = {"finish_reason": "ran_out_of_patience"}
    assert direct.to_answer(response, REQUEST, "openai:m").finish is Finish.STOP


def test_an_answer_may_say_nothing() -> None:
    assert direct.to_answer(said("", "stop"), REQUEST, "openai:m").text == ""


def test_what_this_version_cannot_show_is_said_to_be_there() -> None:
    (request,) = direct.to_messages([UserEntry([{"type": "hologram"}])])
    (part,) = request.parts
    assert isinstance(part, messages.UserPromptPart)
    assert part.content == "[a block of type hologram, which cannot be shown]"
