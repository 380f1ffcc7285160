"""Delivery: what waits in the outbox reaches its receiver, whatever happens in between.

One courier per receiver sends post after post, so a receiver that is down or slow holds up
nobody else. A post is repeated until the receiver answers with 2xx; redirects are refused. Couriers
hold one post in memory each; the rest lies in the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

import httpx

from assay.delivery.payload import with_artifacts
from assay.delivery.settings import DeliveryMetrics, DeliverySettings
from assay.delivery.targets import CallbackTargets, TargetError
from assay.errors import StoreError
from assay.store.outbox import Campaign, OpenCampaign, Outbox, Post, Waiting

FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 30.0
POST_ARTIFACTS = 10_000
"""Artifacts in one request at most: 0.65 MB."""
ANSWER_BYTES = 65_536
"""Of a receiver's answer this much is read, so that the connection can be used again."""


@dataclass
class _Receiver:
    """What one courier goes by. ``artifacts`` and ``results`` mirror the outbox."""

    url: str
    artifacts: int = 0
    results: int = 0
    urgent: bool = False
    failures: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    courier: asyncio.Task[None] | None = None


class Deliveries:
    """The outbox and its couriers. ``close`` ends the couriers; what waits stays (F40)."""

    def __init__(
        self,
        outbox: Outbox,
        settings: DeliverySettings,
        targets: CallbackTargets,
        metrics: DeliveryMetrics,
        logger: logging.Logger,
    ) -> None:
        self._outbox = outbox
        self._settings = settings
        self._targets = targets
        self._metrics = metrics
        self._logger = logger
        self._receivers: dict[str, _Receiver] = {}
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        # trust_env: a proxy from the environment would see, and could redirect, every callback.
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=settings.timeout_s,
            limits=httpx.Limits(max_connections=settings.max_concurrent),
        )

    async def resume(self) -> None:
        """Take up what an earlier run of this server left."""
        for url, waiting in (await asyncio.to_thread(self._outbox.waiting)).items():
            self._logger.info(
                "poc: %d artifacts and %d results still wait for %s",
                waiting.artifacts,
                waiting.results,
                url,
            )
            self._tell(url, waiting.artifacts, waiting.results, urgent=True)

    def waiting(self, url: str | None = None) -> Waiting:
        """What waits for one receiver, or for all."""
        chosen = [
            receiver for receiver in self._receivers.values() if url is None or receiver.url == url
        ]
        return Waiting(
            sum(receiver.artifacts for receiver in chosen),
            sum(receiver.results for receiver in chosen),
        )

    def is_full(self, url: str) -> bool:
        """Whether as many artifacts wait for a receiver as may."""
        return self.waiting(url).artifacts >= self._settings.max_artifacts

    async def open_campaign(self, campaign: Campaign) -> OpenCampaign:
        return await asyncio.to_thread(self._outbox.open_campaign, campaign)

    async def append(
        self, campaign_id: int, url: str, count: int, body: str, position: int
    ) -> None:
        """Keep mined artifacts; they are sent with the next interval, or when a post is full."""
        await asyncio.to_thread(self._outbox.append, campaign_id, count, body, position)
        self._tell(url, count, 0, urgent=False)

    def arrived(self, url: str, artifacts: int, results: int, *, urgent: bool = False) -> None:
        """Something for ``url`` lies in the outbox that this object did not put there."""
        self._tell(url, artifacts, results, urgent=urgent)

    async def close_campaign(self, campaign_id: int) -> None:
        await asyncio.to_thread(self._outbox.close_campaign, campaign_id)

    async def add(self, campaign: Campaign, count: int = 0, body: str = "") -> None:
        """Keep a job's artifacts or a validation result; sent at once."""
        await asyncio.to_thread(self._outbox.add, campaign, count, body)
        self._tell(campaign.url, count, int(campaign.kind == "validated"), urgent=True)

    async def close(self) -> None:
        couriers = [r.courier for r in self._receivers.values() if r.courier is not None]
        for courier in couriers:
            courier.cancel()
        if couriers:
            await asyncio.wait(couriers)
        await self._client.aclose()
        await asyncio.to_thread(self._outbox.close)

    def _tell(self, url: str, artifacts: int, results: int, *, urgent: bool) -> None:
        receiver = self._receivers.setdefault(url, _Receiver(url))
        receiver.artifacts += artifacts
        receiver.results += results
        if urgent or receiver.artifacts >= POST_ARTIFACTS:
            receiver.urgent = True
            receiver.news.set()
        self._metrics.waiting.set(self.waiting().artifacts)
        if receiver.courier is None:
            receiver.courier = asyncio.create_task(self._carry(receiver))

    async def _carry(self, receiver: _Receiver) -> None:
        """Send all that waits for one receiver; ends when nothing does."""
        interval = self._settings.interval_s
        while True:
            if not receiver.urgent:
                # When the interval is over, send what has come together.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await receiver.news.wait()
            receiver.news.clear()
            try:
                await self._deliver_due(receiver)
            except StoreError as error:
                self._logger.error("poc: callbacks to %s wait: %s", receiver.url, error)
                await asyncio.sleep(LONGEST_BACKOFF)
                receiver.urgent = True
                continue
            # No await between the look and the goodbye: _tell starts a new courier afterwards.
            if not receiver.artifacts and not receiver.results and not receiver.urgent:
                del self._receivers[receiver.url]
                return

    async def _deliver_due(self, receiver: _Receiver) -> None:
        """Send what waits now. What is mined meanwhile waits for the next interval, unless urgent."""
        due = receiver.artifacts + receiver.results
        while due > 0 or receiver.urgent:
            receiver.urgent = False
            post = await asyncio.to_thread(self._outbox.next_post, receiver.url, POST_ARTIFACTS)
            if post is None:
                return
            if await self._deliver(receiver, post):
                due -= post.count + int(post.kind == "validated")

    async def _deliver(self, receiver: _Receiver, post: Post) -> bool:
        """One request, and what follows from its outcome; whether the receiver took it."""
        async with self._slots:
            error = await self._send(post)
        if error is None:
            await asyncio.to_thread(self._outbox.accepted, post.id)
            receiver.artifacts -= post.count
            receiver.results -= int(post.kind == "validated")
            receiver.failures = 0
            self._metrics.callbacks.labels(outcome="accepted").inc()
            self._metrics.delivered.inc(post.count)
            self._metrics.waiting.set(self.waiting().artifacts)
            return True
        await asyncio.to_thread(self._outbox.failed, post.id, error)
        receiver.failures += 1
        self._metrics.callbacks.labels(outcome="failed").inc()
        self._log_failure(receiver, error)
        await asyncio.sleep(min(FIRST_BACKOFF * 2 ** (receiver.failures - 1), LONGEST_BACKOFF))
        return False

    async def _send(self, post: Post) -> str | None:
        """POST it; None when the receiver took it, else why not."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                ways = await self._targets.connections(post.url, f"/{post.kind}", post.caller)
                body = _body(post)
                for index, way in enumerate(ways):
                    try:
                        async with self._client.stream(
                            "POST",
                            way.url,
                            content=body,
                            headers={
                                **way.headers,
                                "Content-Type": "application/json",
                                "Idempotency-Key": post.key,
                            },
                            extensions=way.extensions,
                        ) as response:
                            await _read_a_little(response)
                    except httpx.ConnectError:
                        if index + 1 == len(ways):
                            raise
                        continue
                    return _outcome(response)
        except TimeoutError:
            return f"no answer within {self._settings.timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
        except TargetError as error:
            return str(error)
        return "no way to connect"

    def _log_failure(self, receiver: _Receiver, error: str) -> None:
        if receiver.failures == 1:
            self._logger.warning("poc: callback to %s failed (%s); repeating", receiver.url, error)
        elif receiver.failures == self._settings.max_failures:
            self._logger.error(
                "poc: %s took no callback in %d tries (%s); %d artifacts and %d results wait for "
                "it, kept, tried every %.0f s",
                receiver.url,
                receiver.failures,
                error,
                receiver.artifacts,
                receiver.results,
                LONGEST_BACKOFF,
            )


def _body(post: Post) -> bytes:
    if post.kind == "validated":
        return post.head.encode()
    return with_artifacts(post.head, list(post.pieces))


async def _read_a_little(response: httpx.Response) -> None:
    seen = 0
    async for chunk in response.aiter_raw():
        seen += len(chunk)
        if seen > ANSWER_BYTES:
            return


def _outcome(response: httpx.Response) -> str | None:
    """2xx is accepted. A redirect is not followed, and what was not received is not delivered."""
    if response.is_success:
        return None
    if response.is_redirect:
        return f"HTTP {response.status_code}: redirects are refused"
    return f"HTTP {response.status_code}"
