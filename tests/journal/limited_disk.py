"""A process whose files may not grow beyond 16 KiB: what the journal says and keeps. Prints JSON.

python limited_disk.py FOLDER
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from proxy.journal.journal import Journal
from proxy.journal.log import JournalFull
from tests.journal.records import ROOMY, opened, record


def main(folder: Path) -> None:
    journal = Journal.open(folder, bytes_max=ROOMY)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
    begun = 0
    try:
        while True:
            journal.begin(opened(begun))
            begun += 1
    except JournalFull:
        pass
    held = [journal.finish(record(opened(number))) for number in range(begun)].count(False)
    assert held == journal.unwritten_count, "once full, all wait in order"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert journal.retry()
    journal.close()
    journal = Journal.open(folder, bytes_max=ROOMY)
    pending = [pending.record for pending in journal.pending(10_000)]
    assert pending == [record(opened(number)) for number in range(begun)]
    said = {"begun": begun, "held": held, "torn": journal.torn_bytes, "damage": len(journal.damage)}
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
