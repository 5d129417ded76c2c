"""Clients of the APIs of OpenAI and Anthropic: plain ones, which are called as the SDKs are, and the SDKs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast
from urllib.parse import urlencode

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, FormData
from yarl import URL

from tests.support import sdks

if TYPE_CHECKING:
    import anthropic
    import openai

# Called with the name of a key, and perhaps the URL of a proxy.
Gpt: TypeAlias = Callable[..., "openai.AsyncOpenAI"]
Claude: TypeAlias = Callable[..., "anthropic.AsyncAnthropic"]
TIMEOUT_S = 60.0


class RefusedError(Exception):
    """The status and the body of an error, as the SDKs raise it."""

    def __init__(self, status: int, document: Any) -> None:
        super().__init__(f"Error code: {status} - {document}")
        self.status_code = status
        self.body = document if "type" in document else document.get("error", document)
        self.code, self.param = self.body.get("code"), self.body.get("param")


# Of plain clients.
FAILURES = (RefusedError, ClientError)


@contextmanager
def refusal(*statuses: int, match: str = ".") -> Iterator[pytest.ExceptionInfo[Any]]:
    """The body of the `with` statement is refused with one of these statuses, by a client of either kind."""
    with pytest.raises(Exception, match=match) as caught:
        yield caught
    failure: Any = caught.value
    assert failure.status_code in statuses


class _Document(SimpleNamespace):
    """An object of JSON; a field that is absent is None, as in the SDKs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def __eq__(self, other: object) -> bool:
        return vars(self) == (other if isinstance(other, dict) else vars(other))

    @property
    def output_text(self) -> str:
        return "".join(part.text for item in self.output for part in item.content)


def _read(text: bytes) -> Any:
    return json.loads(text, object_hook=lambda fields: _Document(**fields))


class _Events:
    def __init__(self, answer: ClientResponse) -> None:
        self._answer = answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        async for line in self._answer.content:
            if line.startswith(b"data: "):
                return _read(line[6:])
        raise StopAsyncIteration

    async def close(self) -> None:
        self._answer.close()


class _Pages:
    """A list: its first page, or its items page by page."""

    def __init__(self, api: _Api, path: str, query: dict[str, Any]) -> None:
        self._api, self._path, self._query = api, path, query

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._api.get(self._path, **self._query).__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        query = self._query
        while True:
            page = await self._api.get(self._path, **query)
            for one in page.data:
                yield one
            if not page.has_more:
                return
            if self._api.is_openai:
                query = query | {"after": page.data[-1].id}
            else:
                query = query | ({"before_id": page.first_id} if "before_id" in query else {"after_id": page.last_id})


class _Resource:
    """Objects below one path."""

    input_items: _Resource
    batches: _Resource

    def __init__(self, api: _Api, path: str) -> None:
        self._api, self._path = api, path

    async def create(self, **fields: Any) -> Any:
        if (file := fields.pop("file", None)) is not None:
            return await self._api.post(self._path, files=[("file", file)], body=fields)
        return await self._api.post(self._path, body=fields)

    async def retrieve(self, name: str, **query: Any) -> Any:
        return await self._api.get(f"{self._path}/{name}", **query)

    async def content(self, name: str) -> Any:
        return SimpleNamespace(content=await self._api.bytes_of(f"{self._path}/{name}/content"))

    async def results(self, name: str) -> AsyncIterator[Any]:
        """As the SDK: from the URL that the batch has."""
        url = (await self.retrieve(name)).results_url
        if url is None:
            raise RefusedError(0, {"error": {"message": "no results"}})
        lines = [_read(line) for line in (await self._api.bytes_of(url)).splitlines()]

        async def each() -> AsyncIterator[Any]:
            for one in lines:
                yield one

        return each()

    async def cancel(self, name: str) -> Any:
        return await self._api.post(f"{self._path}/{name}/cancel")

    async def delete(self, name: str) -> Any:
        return await self._api.delete(f"{self._path}/{name}")

    def list(self, name: str = "", **query: Any) -> _Pages:
        """`name`: of a response; else all."""
        return _Pages(self._api, self._path.format(name), query)

    # Of Anthropic's files.
    upload, retrieve_metadata, download = create, retrieve, content


class _Api:
    """The API of a family at a URL, with a key."""

    def __init__(self, http: ClientSession, url: str, headers: dict[str, str], *, is_openai: bool) -> None:
        self._http, self._url, self._headers, self.is_openai = http, url, headers, is_openai
        base = "" if is_openai else "/v1"
        self.files, self.batches = _Resource(self, f"{base}/files"), _Resource(self, "/batches")
        self.responses = _Resource(self, "/responses")
        self.responses.input_items = _Resource(self, "/responses/{}/input_items")
        self.chat = SimpleNamespace(completions=_Resource(self, "/chat/completions"))
        self.messages = _Resource(self, "/v1/messages")
        self.messages.batches = _Resource(self, "/v1/messages/batches")
        self.beta = SimpleNamespace(files=self.files)

    async def get(self, path: str, *, cast_to: object = None, **query: Any) -> Any:
        """`query`: as the SDKs write it, lists with `[]`."""
        pairs = [
            (f"{name}[]", one) if isinstance(value, list) else (name, one)
            for name, value in query.items()
            for one in (value if isinstance(value, list) else [json.dumps(value) if value is True else value])
        ]
        return await self._read(await self._ask("GET", f"{path}?{urlencode(pairs)}" if pairs else path))

    async def post(
        self, path: str, *, cast_to: object = None, body: Any = None, content: bytes | None = None, files: Any = (),
        options: object = None,
    ) -> Any:  # fmt: skip
        if not files:
            sent = {"data": content} if content is not None else {"json": body} if body is not None else {}
            return await self._read(await self._ask("POST", path, **sent))
        form = FormData()
        for name, value in (body or {}).items():
            for inner, one in value.items() if isinstance(value, dict) else [("", value)]:
                form.add_field(f"{name}[{inner}]" if inner else name, str(one))
        for name, (filename, data) in files:
            form.add_field(name, data, filename=filename)
        return await self._read(await self._ask("POST", path, data=form))

    async def delete(self, path: str) -> Any:
        return await self._read(await self._ask("DELETE", path))

    async def bytes_of(self, path: str) -> bytes:
        return await (await self._ask("GET", path)).read()

    async def _read(self, answer: ClientResponse) -> Any:
        if answer.content_type == "text/event-stream":
            return _Events(answer)
        return _read(await answer.read())

    async def _ask(self, method: str, path: str, **sent: Any) -> ClientResponse:
        url = URL(self._url + path, encoded=True)
        answer = await self._http.request(method, url, headers=self._headers, **sent)
        if answer.status >= 400:
            raise RefusedError(answer.status, json.loads(await answer.read()))
        return answer


class Clients:
    """Clients of both families at any proxy, over one pool of connections."""

    def __init__(self, *, plain: bool = True) -> None:
        self._plain = plain
        self._http: Any = None

    async def __aenter__(self) -> Self:
        if self._plain:
            self._http = ClientSession(timeout=ClientTimeout(TIMEOUT_S), cookie_jar=DummyCookieJar())
        else:  # without the system's certificates: to read them costs more than most tests
            self._http = sdks.openai.DefaultAsyncHttpxClient(verify=False, trust_env=False, timeout=TIMEOUT_S)
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._http.__aexit__(*failure)

    def gpt(self, url: str, key: str = "anna") -> openai.AsyncOpenAI:
        """OpenAI's API; `url`: of the proxy."""
        if self._plain:
            made = _Api(self._http, f"{url}/v1", {"Authorization": f"Bearer {key}"}, is_openai=True)
            return cast("openai.AsyncOpenAI", made)
        return sdks.openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=self._http)

    def claude(self, url: str, key: str = "anna") -> anthropic.AsyncAnthropic:
        if self._plain:
            made = _Api(self._http, url, {"x-api-key": key, "anthropic-version": "2023-06-01"}, is_openai=False)
            return cast("anthropic.AsyncAnthropic", made)
        return sdks.anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=self._http)


@pytest.fixture(params=["plain", pytest.param("sdk", marks=pytest.mark.thorough)])
async def clients(request: pytest.FixtureRequest) -> AsyncIterator[Clients]:
    """Plain ones; in `make test-thorough` the SDKs too."""
    async with Clients(plain=request.param == "plain") as made:
        yield made
