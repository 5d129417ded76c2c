"""Files and batches in the ledger's database: whose they are, and who asks for them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from proxy.billing.batch import BatchInput, BatchState, Share, StoredBatch, StoredFile, Terms
from proxy.billing.keys import DEFAULT_PROJECT, ApiKey
from proxy.billing.record import Price, Rates
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.ledger.stored_objects.files import FileStore
from proxy.ledger.stored_objects.pages import UnknownCursorError
from proxy.metering.stored_objects.api import Order, PageAsked
from proxy.metering.usage import Usage
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

INPUT = BatchInput("/v1/chat/completions", (Share("m", "up", 3, 10, 20, 7, units=Usage(searches=2)),), "0f")
TERMS = (Terms("m", "up", Price("p", (Rates(1, 2, 3),)), None, 4, ("a", "ü")), Terms("n", "n", None, None, 1))


def key(key_id: str, project_id: str = DEFAULT_PROJECT) -> ApiKey:
    return ApiKey(key_id, key_id, b"", "", None, 0.0, None, None, 1, project_id=project_id)


def file(number: int, **values: Any) -> StoredFile:
    about = {"api": "openai.files", "provider": "p", "credential": None, "key_id": "anna", "project_id": "proj_a"}
    return StoredFile(**about | {"file_id": f"file-{number:02d}", "created_at": 100.0 + number // 2} | values)


def batch(number: int, **values: Any) -> StoredBatch:
    about = {
        "api": "openai.batches", "provider": "p", "credential": "one", "key_id": "anna", "project_id": "proj_a",
        "batch_id": f"batch_{number}", "state": BatchState.RUNNING, "key_alias": "a", "endpoint": "/v1/embeddings",
        "input_file": "file-1", "lines": 2, "reserved_nusd": 1_000_000_001, "names": "ff",
    }  # fmt: skip
    return StoredBatch(**about | {"exchange_id": f"x{number:03d}", "created_at": 100.0 + number} | values)


@pytest.fixture
def files(engine: Engine) -> FileStore:
    return FileStore(engine)


@pytest.fixture
def batches(engine: Engine) -> BatchStore:
    return BatchStore(engine)


def add(batches: BatchStore, *made: StoredBatch, node: str = "here", next_at: float = 1_000.0) -> None:
    for one in made:
        assert batches.add(one, TERMS, node=node, next_at=next_at, unfinished_max=100)


def test_a_file_is_read_as_it_was_written(files: FileStore) -> None:
    made = file(1, purpose="batch", input=INPUT, credential="two")
    files.add(made)
    files.add(file(2, made_by="x001"))
    assert files.find(["file-01", "file-02", "nobody's"]) == {"file-01": made, "file-02": file(2, made_by="x001")}
    assert (files.count("anna"), files.count("bert")) == (1, 0), "results are not counted"
    files.add(file(1, key_id="bert"))
    assert files.find(["file-01"])["file-01"].key_id == "bert", "the last maker of an id counts"
    files.forget("file-01")
    assert files.find(["file-01"]) == {}


@pytest.mark.parametrize("order", list(Order))
def test_pages_have_all_of_ones_own_and_nothing_else(files: FileStore, order: Order) -> None:
    for number in range(7):
        files.add(file(number, purpose="batch" if number == 3 else "user_data"))
    for number, other in enumerate(
        [{"key_id": "bert"}, {"key_id": "carl", "project_id": "proj_b"}, {"api": "anthropic.files"}], 10
    ):
        files.add(file(number, **other))
    own = [f"file-{number:02d}" for number in (*range(7), 10)]  # bert's is of the same project
    own = own if order is Order.OLDEST_FIRST else own[::-1]
    seen: list[str] = []
    more = True
    while more:
        asked = PageAsked(3, seen[-1] if seen else None, order=order)
        page, more = files.page("openai.files", key("anna", "proj_a"), asked)
        seen += [one.file_id for one in page]
    assert seen == own
    page, more = files.page("openai.files", key("anna", "proj_a"), PageAsked(3, before=own[4], order=order))
    assert ([one.file_id for one in page], more) == (own[1:4], True)
    page, more = files.page("openai.files", key("anna", "proj_a"), PageAsked(9, purpose="batch"))
    assert ([one.file_id for one in page], more) == (["file-03"], False)
    with pytest.raises(UnknownCursorError):
        files.page("openai.files", key("anna", "proj_a"), PageAsked(3, after="file-11"))


def test_the_default_project_shares_nothing(files: FileStore) -> None:
    files.add(file(1, project_id=DEFAULT_PROJECT))
    assert files.page("openai.files", key("anna"), PageAsked(9))[0] != []
    assert files.page("openai.files", key("bert"), PageAsked(9))[0] == []


def test_a_batch_is_read_as_it_was_written(batches: BatchStore) -> None:
    made = batch(1)
    add(batches, made)
    assert batches.find("batch_1") == batches.of_exchange("x001") == made
    assert batches.terms("x001") == TERMS
    assert batches.find("batch_2") is None
    assert batches.page("openai.batches", key("anna"), PageAsked(9)) == ([made], False)
    assert batches.page("openai.batches", key("bert"), PageAsked(9)) == ([], False)


@on_both_databases
def test_a_batch_goes_its_way_once(batches: BatchStore, files: FileStore) -> None:
    add(batches, batch(1, batch_id=None, state=BatchState.CREATING))
    assert batches.page("openai.batches", key("anna"), PageAsked(9)) == ([], False), "nobody has it yet"
    assert batches.made("x001", "batch_1", next_at=50.0)
    assert not batches.made("x001", "batch_1", next_at=50.0)
    add(batches, batch(2, batch_id=None, state=BatchState.CREATING))
    assert not batches.made("x002", "batch_1", next_at=50.0), "the id is another's"
    assert batches.made("x002", "batch_2", next_at=50.0)
    assert batches.known(["batch_1", "batch_2", "batch_3"]) == {"batch_1", "batch_2"}
    assert len(batches.page("openai.batches", key("anna"), PageAsked(9))[0]) == 2
    running = batches.find("batch_2")
    assert running is not None
    assert running.state is BatchState.RUNNING
    for _ in range(2):
        batches.ended(running, [file(7, made_by="x002"), file(8, made_by="x002")])
    batches.close("x002", BatchState.SETTLED)
    batches.close("x002", BatchState.LOST)
    settled = batches.of_exchange("x002")
    assert settled is not None
    assert (settled.state, settled.files) == (BatchState.SETTLED, ("file-07", "file-08"))
    batches.forget_older(1_000.0)
    assert batches.of_exchange("x002") is None
    assert batches.of_exchange("x001") is not None, "it is not finished"
    assert files.find(["file-07", "file-08"]) == {}


def test_a_key_has_a_bounded_number_of_unfinished_batches(batches: BatchStore) -> None:
    for number in range(3):
        assert batches.add(batch(number), TERMS, node="n", next_at=0.0, unfinished_max=3)
    assert not batches.add(batch(3), TERMS, node="n", next_at=0.0, unfinished_max=3)
    assert batches.add(batch(4, key_id="bert"), TERMS, node="n", next_at=0.0, unfinished_max=3)
    batches.close("x000", BatchState.SETTLED)
    assert batches.add(batch(3), TERMS, node="n", next_at=0.0, unfinished_max=3)


@on_both_databases
def test_one_node_asks_for_a_batch_and_another_after_it(batches: BatchStore) -> None:
    add(batches, batch(1), next_at=100.0)
    add(batches, batch(2), next_at=300.0)
    add(batches, batch(3, state=BatchState.SETTLED), next_at=1.0)
    claim = {"for_s": 60.0, "limit": 9}
    assert batches.claim("here", now=99.0, **claim) == []
    assert batches.claim("there", now=120.0, **claim) == [], "its node may be late"
    assert batches.claim("here", now=120.0, **claim) == [batch(1)]
    assert batches.claim("here", now=121.0, **claim) == [], "it is being asked for"
    batches.postpone("x001", 150.0)
    assert batches.claim("there", now=209.0, **claim) == []
    assert batches.claim("there", now=210.0, **claim) == [batch(1)]
    assert batches.claim("here", now=271.0, **claim) == []
    assert [one.exchange_id for one in batches.of_node("here")] == ["x002"]
    assert batches.claim("here", now=1_000.0, for_s=60.0, limit=1) == [batch(1)], "the longest overdue first"
