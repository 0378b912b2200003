"""The types of a script are the keys of the language that a worker reads, every one and no other."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from mailslot.testing import call, fail, hang
from mailslot.testing import script as typed
from mailslot_core.agent import Finish
from mailslot_services.agent_worker.models import script as read

PAIRS: list[tuple[type, type[BaseModel]]] = [
    (typed.Call, read.Call),
    (typed.Failure, read.Failure),
    (typed.Tokens, read.Tokens),
    (typed.Delta, read.Delta),
    (typed.Answer, read.Say),
    (typed.When, read.When),
]


@pytest.mark.parametrize(("hints", "model"), PAIRS)
def test_a_type_has_the_keys_of_what_is_read(hints: type, model: type[BaseModel]) -> None:
    assert set(get_type_hints(hints)) == set(model.model_fields)


def test_a_rule_has_the_keys_of_an_answer_and_its_own() -> None:
    own = set(read.Rule.model_fields) - {"always"}  # an answer of its own stands beside `when`
    assert set(get_type_hints(typed.Rule)) == own | set(read.Say.model_fields)


def test_a_finish_is_one_of_those_that_models_have() -> None:
    assert set(get_type_hints(typed.Answer)["finish"].__args__) == {finish.value for finish in Finish}


@pytest.mark.parametrize(
    "answer",
    [
        call("weather", city="Berlin", days=[1, 2]),
        fail(),
        fail("rate-limited", "slow down", retryable=True, retry_after_ms=5, times=2, then="hello"),
        hang(),
    ],
)
def test_what_the_short_forms_write_is_read(answer: typed.Answer) -> None:
    (rule,) = read.parse_script([dict(answer)], "in Python").rules
    assert rule.always is not None


def test_a_short_form_says_what_it_was_told() -> None:
    assert call("weather", city="Berlin")["calls"] == [{"name": "weather", "arguments": {"city": "Berlin"}}]
    failure = fail("x", retryable=False, times=1)["fail"]
    assert (failure["code"], failure["retryable"], failure["times"]) == ("x", False, 1)
