"""What a request with the client's own credential costs: nothing to the operator, and its owner by the key's terms."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.billing.byok import byok_lists, list_price, terms_of, terms_text
from proxy.billing.details import EntryDetails
from proxy.billing.pricing.prices import pinned
from proxy.billing.record import BillableParts, Price, Rates
from proxy.billing.settlement import amount, entry
from tests.billing.records import RECORD, REPORTED

USAGE = REPORTED.usage
LIST = Price("v1", (Rates(input=1_000_000_000, cached_input=100_000_000, output=3_000_000_000, searches=7),))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("free", "nothing"), (" 5% ", "5%"), ("5.50%", "5.5%"), ("0%", "0%"), ("1000%", "1000%"), ("100%", "100%"),
        ("0.0020usd/request", "0.002"), ("1e-3USD/request", "0.001"), ("0usd/request", "0"),
        ("100usd/request", "100"), ("0.000000001usd/request", "0.000000001"),
    ],
)  # fmt: skip
def test_terms_have_one_form(text: str, normal: str) -> None:
    assert terms_of(text) == normal == terms_of(terms_text(normal))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "nothing",
        "5",
        "0.002",
        "usd/request",
        "-1usd/request",
        "-5%",
        "101usd/request",
        "1001%",
        "nanusd/request",
        "inf%",
        "1e-12usd/request",
        "1e-9%",
        "5 %%",
    ],
)
def test_other_terms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be `free`, a share"):
        terms_of(text)


@pytest.mark.parametrize("listed", [LIST, replace(LIST, stated=("1",)), None])
@pytest.mark.parametrize("terms", ["nothing", "5%", "0.002", "0"])
def test_the_entry_has_the_terms_and_the_amount_at_list_price(terms: str, listed: Price | None) -> None:
    price, cost = byok_lists(terms, listed, listed)
    made = RECORD
    line = entry(replace(made, opened=replace(made.opened, price=price, cost=cost, byok=terms)))
    at_list = None if listed is None else amount(LIST, USAGE, BillableParts.EVERYTHING)
    details = EntryDetails.of(line.details)
    expected = {"nothing": 0, "0": 0, "0.002": 2_000_000, "5%": at_list and amount(price, USAGE, made.bills)}[terms]
    assert (line.cost_nusd, line.charge_nusd) == (0, expected)
    assert list_price(cost) == listed
    assert details.byok is not None
    assert details.byok["terms"] == terms
    if at_list is not None:
        assert details.byok["list_usd"] == f"{at_list / 10**9:.9f}".rstrip("0")
        assert amount(pinned(details.byok["list"]), USAGE, made.bills) == at_list
        assert terms != "5%" or line.charge_nusd == pytest.approx(at_list / 20, rel=1e-6)
    for text, nusd in ((details.price, line.charge_nusd), (details.cost, line.cost_nusd)):  # as `reconcile` does
        assert text is None or amount(pinned(text), USAGE, made.bills) == nusd
