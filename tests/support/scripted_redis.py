"""A server of Redis's protocol that answers from a script: for versions and moods that no server at hand has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

OK = b"+OK\r\n"


def bulk(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text.encode()), text.encode())


class ScriptedRedis:
    """Use it as an async context manager; connect to `url`."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        """`answers`: command → the raw answer; +OK for others, and +PONG where it is due."""
        self.asked: list[list[bytes]] = []
        """every command, in order"""
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._answers = {b"PING": b"+PONG\r\n"} | {name.encode(): answer for name, answer in answers.items()}

    async def __aenter__(self) -> ScriptedRedis:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()  # since Python 3.12 the server waits for its connections
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            self.asked.append(words)
            writer.write(self._answers.get(words[0], OK))
        writer.close()
