"""Settings of statements: what is printed on a bill is one line, or some lines, of text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from proxy.settings import SettingsError, parse
from proxy.settings.statement import StatementSettings, TaxSettings

MODELS = """
providers: {electron: {base_url: "http://electron.test/v1"}}
models: {electron: {provider: electron}}
"""


def parsed(written: str) -> StatementSettings:
    return parse(f"{MODELS}statement: {{{written}}}", env={"VAT": "19"}, folder=Path("/etc/tokenweir")).statement


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ('seller: ""', r"statement\.seller: must be a line of 1 to 200 characters"),
        ('seller: "a\\nb"', r"statement\.seller: must be a line"),
        ('seller: "a\\u202eb"', r"statement\.seller: must be a line"),
        ('address: "a\\tb"', r"statement\.address: must be lines of text"),
        (f"terms: {'x' * 1_001}", r"statement\.terms: must be lines of text, up to 1000 characters"),
        ("due_days: 400", r"statement\.due_days: must be a whole number from 0 to 366"),
        ("tax: {label: VAT}", r"statement\.tax\.percent: is missing"),
        *(
            (f"tax: {{percent: {percent}}}", r"statement\.tax\.percent: must be a percentage from 0 to 100")
            for percent in ("-1", "100.1", "19.0001", "true", "1e9999999", "nan", "'19 %'")
        ),
        ("customers: {acme: {nam: Acme}}", r"statement\.customers\.acme\.nam: unknown field"),
        ("customers: {}", r"statement\.customers: must be a mapping"),
        ("currency: EUR", r"statement\.currency: unknown field"),
        ("customers: {acme: {email: acme}}", r"statement\.customers\.acme\.email: must be an e-mail address"),
        ('customers: {acme: {email: "a@b.example, c@d.example"}}', r"acme\.email: must be an e-mail address"),
        (f"mail: {{host: h, from: {'x' * 250}@b.example}}", r"statement\.mail\.from: must be an e-mail address"),
        ("mail: {from: a@b.example}", r"statement\.mail\.host: is missing"),
        ("mail: {host: h, from: a@b.example, tls: ssl}", r"statement\.mail\.tls: must be `starttls` or `tls` or"),
        ("mail: {host: h, from: a@b.example, username: u}", r"statement\.mail\.password: is missing: a user and a"),
        ("mail: {host: h, from: a@b.example, password: x}", r"password: a secret does not belong in this file"),
        ('mail: {host: h, from: a@b.example, password: "${VAT}"}', r"statement\.mail\.username: is missing: a user"),
        (
            'mail: {host: h, from: a@b.example, username: u, password: "${VAT}", tls: none}',
            r"statement\.mail\.tls: a password is sent over TLS only",
        ),
    ],
)
def test_invalid_settings_are_named(written: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        parsed(written)


def test_what_is_written_is_printed() -> None:
    read = parsed('seller: Weir, address: "Street 1\\nTown\\n", logo: logo.png, tax: {percent: "${VAT}", label: VAT}')
    assert (read.address, read.logo) == ("Street 1\nTown", Path("/etc/tokenweir/logo.png"))
    assert read.tax == TaxSettings(label="VAT", percent="19")
    assert [parsed(f"tax: {{percent: {one}}}").tax for one in ("8.875", "'7.50'", "0")] == [
        TaxSettings(percent=one) for one in ("8.875", "7.5", "0")
    ]


def test_a_closed_month_stores_and_reads_them() -> None:
    read = parsed('seller: Weir, due_days: 14, tax: {percent: 19}, customers: {acme: {legal_name: "Acme Ltd"}}')
    assert msgspec.convert(msgspec.to_builtins(read), StatementSettings) == read
    mail = 'mail: {host: h, from: a@b.example, username: u, password: "${VAT}"}'
    sent = parsed(f"seller: Weir, customers: {{acme: {{email: a@b.example}}}}, {mail}")
    assert sent.mail is not None
    assert (sent.mail.server_port, sent.mail.sender, repr(sent.mail.password)) == (587, "a@b.example", "Secret(***)")
    kept = msgspec.to_builtins(sent.kept)
    assert (kept["mail"], kept["customers"]["acme"]["email"]) == (None, ""), "what is needed to send is not stored"
