"""A check for a newer price list: it is fetched, compared with the one in use, and put into the ledger.

Invariants: the time and the bytes are bounded. The answer is neither compressed nor a redirect: it comes from the
configured address, and has as many bytes in memory as on the wire.
"""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import Engine

from proxy.billing.pricing.book import PriceBook
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.ledger.price_list import PriceListState, read_content, read_state, record_check, replace_list
from proxy.metering.dialect import KeyHeader
from proxy.runtime.machine.price_acceptance import Accepted, accept
from proxy.runtime.machine.price_file import BYTES_MAX, FETCH_S_MAX, PriceFileError, book_from, price_book
from proxy.settings import ProviderSettings, Settings, SettingsError
from proxy.settings.price_refresh import RefreshSettings


def book_in_use(settings: Settings, engine: Engine) -> tuple[PriceListState, PriceBook]:
    """The book by which proxies price requests, and the state of its refreshing. Raises LedgerUnavailable,
    PriceFileError."""
    state = PriceListState() if settings.prices.refresh is None else read_state(engine)
    if state.version is None:
        return state, price_book(settings.data_dir)
    content = read_content(engine, state.version)
    return state, PriceBook() if content is None else book_from(content, "the price list")


async def newest(client: UpstreamClient, refresh: RefreshSettings, settings: Settings, before: PriceBook) -> Accepted:
    """The parts of the list at the configured address that apply. `before`: the book in use. Raises PriceFileError: no
    part applies."""
    content = await fetched(client, refresh)
    used = [
        (target.provider, settings.providers[target.provider].base_url, target.upstream_model)
        for model in settings.models.values()
        if not model.is_pattern
        for target in model.providers
    ]
    return await asyncio.to_thread(accept, content, refresh.source, before, used, time.time())


def record(engine: Engine, state: PriceListState, accepted: Accepted, every_s: float) -> bool:
    """Put the result of a check into the ledger. `state`: with the list that was in use. False: another list is in use
    by now, and nothing has changed. Raises LedgerUnavailable."""
    now, version = time.time(), accepted.book.version
    if version != state.version and not replace_list(engine, state.version, version, accepted.content, now):
        return False
    record_check(engine, now, every_s, [str(change) for change in accepted.refused])
    return True


async def fetched(client: UpstreamClient, refresh: RefreshSettings) -> bytes:
    """The content of the list at the address in `refresh`. Raises PriceFileError."""
    server = ProviderSettings(name="prices.refresh", base_url=refresh.source, tls=refresh.tls, proxy=refresh.proxy)
    try:
        provider = Provider.of(server, write_stall_s=FETCH_S_MAX)
        async with asyncio.timeout(FETCH_S_MAX):
            answer = await client.ask(provider, provider.bodiless("GET", "", KeyHeader.AUTHORIZATION))
            try:
                content = await _content(answer, refresh.source)
            finally:
                answer.close()
    except SettingsError as wrong:
        raise PriceFileError(str(wrong).removeprefix("providers.")) from None
    except UpstreamFailedError as failure:
        raise PriceFileError(f"{refresh.source}: {failure}") from None
    except TimeoutError:
        raise PriceFileError(f"{refresh.source}: does not answer within {FETCH_S_MAX:g} s") from None
    if content is None:
        raise PriceFileError(f"{refresh.source}: is longer than {BYTES_MAX >> 20} MiB; is this a price book?")
    return content


async def _content(answer: Answer, source: str) -> bytes | None:
    if 300 <= answer.status < 400:
        raise PriceFileError(f"{source}: answers {answer.status}, a redirect: set the address that it leads to")
    if answer.status != 200:
        raise PriceFileError(f"{source}: answers {answer.status}")
    if answer.coding:
        raise PriceFileError(f"{source}: is compressed, although the request did not allow it")
    return await answer.read(BYTES_MAX)
