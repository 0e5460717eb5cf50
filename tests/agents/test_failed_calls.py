"""What follows from a call that failed: one decision, by what failed and how long it has."""

from __future__ import annotations

import pytest

from holdfast.agents.fallback import (
    FailureStep,
    FailureTerms,
    GiveUp,
    ModelChange,
    NextModel,
    Retry,
    WaitForLane,
    step_after,
)
from holdfast.agents.rows import FailedTurn
from holdfast.models import ModelFailure

ALONE = FailureTerms(attempts=3, patience_us=60_000_000)
SPARE = ALONE._replace(change=ModelChange(0, "first", "second"), most_us=30_000_000)
FIRST = FailedTurn(failures=1, attempts=1, age_us=0)

DOWN = ModelFailure("overloaded", "come back later")
BUSY = ModelFailure("rate_limit", "too many", retry_after=7.0)
SLOW = ModelFailure("overloaded", "come back later", retry_after=7.0)
SPENT = ModelFailure("spend_limit", "no money", bought="no")
WRONG = ModelFailure("bad_request", "no such thing", bought="no")


@pytest.mark.parametrize(
    ("failure", "tried", "terms", "left_us", "step"),
    [
        pytest.param(DOWN, FIRST, ALONE, None, Retry(500_000), id="an outage is waited for"),
        pytest.param(DOWN, FIRST._replace(attempts=3), ALONE, None, Retry(2_000_000), id="each time longer"),
        pytest.param(SLOW, FIRST, ALONE, None, Retry(7_000_000), id="as long as the provider wants"),
        pytest.param(
            DOWN, FIRST._replace(attempts=9), SPARE, 4_000_000, Retry(4_000_000), id="while its model may fail"
        ),
        pytest.param(DOWN, FIRST._replace(failures=3), ALONE, None, GiveUp("streaming_error"), id="not for ever"),
        pytest.param(DOWN, FIRST._replace(age_us=60_000_001), ALONE, None, GiveUp("streaming_error"), id="for so long"),
        pytest.param(
            DOWN, FIRST._replace(failures=3), SPARE, 9_000_000, NextModel(), id="then the next model is asked"
        ),
        pytest.param(SLOW, FIRST, SPARE, 7_000_000, NextModel(), id="or at once where it would wait too long"),
        pytest.param(BUSY, FIRST, ALONE, None, WaitForLane(None), id="what holds for everybody closes the lane"),
        pytest.param(BUSY, FIRST, SPARE, 8_000_000, WaitForLane(8_000_000), id="no longer than its model may fail"),
        pytest.param(BUSY, FIRST, SPARE, 7_000_000, NextModel(), id="a lane that is closed for too long"),
        pytest.param(SPENT, FIRST, ALONE, None, WaitForLane(None), id="a person is waited for"),
        pytest.param(SPENT, FIRST, SPARE, 8_000_000, NextModel(), id="unless another model may be asked"),
        pytest.param(WRONG, FIRST, ALONE, None, GiveUp("streaming_error"), id="what is wrong stays wrong"),
        pytest.param(
            ModelFailure("context_window", "too long"), FIRST, ALONE, None, GiveUp("context_window"), id="too long"
        ),
        pytest.param(
            ModelFailure("permission", "not yours"), FIRST, ALONE, None, GiveUp("account_refused"), id="not allowed"
        ),
    ],
)
def test_a_failure_has_one_step(
    failure: ModelFailure, tried: FailedTurn, terms: FailureTerms, left_us: int | None, step: FailureStep
) -> None:
    assert step_after(failure, tried, terms, left_us, lambda: 0.5) == step
