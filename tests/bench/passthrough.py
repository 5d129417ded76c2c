"""The other yardstick: the shortest honest pass-through that aiohttp allows.

Law: it meters nothing and records nothing.

Run as `python -m tests.bench.passthrough PORT PROVIDER_URL [--loop asyncio|uvloop]`; ends on SIGTERM.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

# What belongs to one connection, and what the next writer sets itself.
HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})

Relay = Callable[[web.Request], Awaitable[web.StreamResponse]]


def end_to_end(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers that go on to the other side."""
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


def relay_to(session: ClientSession, provider: str) -> Relay:
    """A handler that sends each request to `provider` (scheme and authority) and relays what comes back."""

    async def relay(request: web.Request) -> web.StreamResponse:
        headers = end_to_end(request.headers)
        body = await request.read()
        async with session.post(provider + request.path_qs, data=body, headers=headers) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.headers.extend(end_to_end(upstream.headers))
            response.content_length = upstream.content_length
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    return relay


async def serve_until_told(port: int, provider: str) -> None:
    """Serves on the loopback until SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    # limit=0: as many upstream connections as there are streams; total=None: a held stream is no fault here.
    async with ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=120),
        timeout=ClientTimeout(total=None),
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
    ) as session:
        app = web.Application()
        app.router.add_post("/{path:.*}", relay_to(session, provider))
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, keepalive_timeout=120)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096, shutdown_timeout=0.1).start()
        await told.wait()
        await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description="a plain aiohttp pass-through")
    parser.add_argument("port", type=int)
    parser.add_argument("provider", metavar="PROVIDER_URL")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    args = parser.parse_args()
    serving = serve_until_told(args.port, args.provider)
    if args.loop == "uvloop":
        import uvloop

        uvloop.run(serving)
    else:
        asyncio.run(serving)


if __name__ == "__main__":
    main()
