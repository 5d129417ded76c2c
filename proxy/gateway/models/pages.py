"""Pages of a list, by the parameters of the query. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.gateway.models.listed_model import ListedModel
from proxy.http import errors
from proxy.http.errors import ApiError

PAGE_MAX = 1000
"""the longest page of every provider's API; longer requests are cut to it"""

Query = Mapping[str, Sequence[str]]
"""parameter → its values"""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    models: Sequence[ListedModel]
    has_more: bool
    """more models follow, in the client's direction"""

    @property
    def last_name(self) -> str | None:
        """The cursor of the next page; None: the page is empty."""
        return self.models[-1].name if self.models else None


@dataclass(frozen=True, slots=True)
class Paging:
    """The parameters of a provider's pages. A cursor is the name of a model."""

    size: str
    size_default: int
    after: str
    before: str = ""
    """the parameter of backward paging; empty: forward only"""

    def page(self, models: Sequence[ListedModel], query: Query) -> Page:
        """The requested page. Raises ApiError, which names the parameter."""
        size = self._size(query)
        after, before = (_place(models, query, parameter) for parameter in (self.after, self.before))
        if before is None:
            begin = 0 if after is None else after + 1
            return Page(models[begin : begin + size], has_more=len(models) > begin + size)
        if after is not None:
            raise _wrong(self.before, f"cannot be combined with {self.after}")
        return Page(models[max(0, before - size) : before], has_more=before > size)

    def _size(self, query: Query) -> int:
        text = query[self.size][0] if self.size in query else str(self.size_default)
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
            raise _wrong(self.size, f"must be a whole number from 1 to {PAGE_MAX}")
        return min(int(text), PAGE_MAX)


def _place(models: Sequence[ListedModel], query: Query, parameter: str) -> int | None:
    """The place of the model that is the cursor; None: there is no cursor."""
    if parameter not in query:
        return None
    for place, model in enumerate(models):
        if model.name == query[parameter][0]:
            return place
    raise _wrong(parameter, "must be a model of this list")


def _wrong(parameter: str, why: str) -> ApiError:
    return errors.bad_request(f"{parameter}: {why}", param=parameter, code="invalid_value")
