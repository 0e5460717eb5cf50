"""A lease as the code that works on its job sees it: what to do, for how long, and how it ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from holdfast.brokers import bytes_form
from holdfast.brokers.hub import Hub, KeptLease
from holdfast.brokers.lease_ttl import lease_ttl_us
from holdfast.durations import Duration
from holdfast.errors import LeaseLost
from holdfast.kernel import codec
from holdfast.kernel.states import StateName
from holdfast.outcomes import Done, Fail, Snooze, TryAgain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BrokerLease:
    """The right to work on one job, for a while. End it with `complete`, `fail`, `snooze` or `release`.

    `LeaseLost` from any of its calls means that somebody else may have the job: stop, and drop the result.
    """

    def __init__(self, hub: Hub, kept: KeptLease) -> None:
        self._hub = hub
        self._kept = kept
        lease = kept.lease
        self.id = lease.id
        self.kind = lease.kind
        self.queue = lease.queue
        self.tenant = lease.tenant
        self.payload: Any = bytes_form.from_json(codec.decode(lease.payload))
        self.metadata: dict[str, Any] = codec.decode(lease.metadata)
        self.attempt = lease.attempts + 1
        self.attempts_left = lease.max_attempts - lease.attempts - 1
        self.token = str(lease.fence)

    def __repr__(self) -> str:
        return f"BrokerLease({self.id}, {self.kind!r}, token={self.token})"

    @property
    def lease_until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return _EPOCH + timedelta(microseconds=self._kept.until)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody cancelled the job, as of the last renewal: however it ends, it ends as cancelled."""
        return self._kept.cancel_requested

    @property
    def lost(self) -> bool:
        """Whether this process knows that the lease is gone."""
        return self._kept.lost.is_set()

    async def wait_lost(self) -> None:
        """Until the lease is gone; it never returns while the lease holds."""
        await self._kept.lost.wait()

    async def renew(self, ttl: Duration | None = None) -> datetime:
        """Hold the job for `ttl` from now on (default: as it was claimed); returns until when.

        A lease is never made shorter, nor longer than the setting `lease_ceiling` from its claim on. `BadSetting` for a
        `ttl` under 1ms or over that ceiling.
        """
        self._check()
        ttl_us = self._kept.owner.ttl_us if ttl is None else lease_ttl_us(ttl, self._hub.settings, "ttl")
        await self._hub.renew(self._kept, ttl_us)
        return self.lease_until

    async def progress(self, value: Any) -> None:
        """Report progress: any small JSON value, which `holdfast jobs show` prints."""
        self._check()
        text = codec.encode(value, what="progress", cap=self._hub.settings.progress_cap)
        await self._hub.report(self._kept, text)

    async def complete(self, result: Any = None) -> StateName:
        """Succeed with a result, JSON or bytes. Returns the state of the job: `cancelled` if a cancel came first."""
        value = bytes_form.to_json(result, what=f"the result of {self.kind}")
        return cast(StateName, await self._hub.end(self._kept, Done(value)))

    async def fail(self, error: str, *, type: str = "processing_error", retry: bool | Duration = True) -> StateName:
        """Fail this attempt. While any are left another follows: at once, or after `retry` ("30s"); False: none."""
        if retry is False:
            return cast(StateName, await self._hub.end(self._kept, Fail(error, type)))
        after: Duration = "0s" if retry is True else retry
        return cast(StateName, await self._hub.end(self._kept, TryAgain(after, error, type)))

    async def snooze(self, delay: Duration, reason: str = "") -> StateName:
        """Hand the job back for a while; costs no attempt."""
        return cast(StateName, await self._hub.end(self._kept, Snooze(delay, reason)))

    async def release(self) -> StateName:
        """Hand the job back as if it had not been claimed."""
        return cast(StateName, await self._hub.release(self._kept))

    def _check(self) -> None:
        if self.lost:
            raise LeaseLost(self.id, self.token)
