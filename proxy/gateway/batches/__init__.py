"""Files and batches at providers: relayed, owned by a key, reserved for, and metered line by line.

Files and batches are objects that a provider stores. They are no exchanges, but the lines of a batch are: each answered
line becomes one entry, at the price of the tier `batch`. The batch itself becomes one entry without a charge, with the
counts of its lines.

Invariants:

* **Owned.** An object exists for the key that made it and for the keys of its project (not the default one), for as
  long as it exists at the provider: its owner is in the ledger's database. Requests about it go to its provider, with
  the credential that made it.
* **Bounded.** A batch is admitted only if each of its lines was checked like a single request. The largest cost of all
  lines is reserved before the provider makes the batch, and stays reserved until the ledger has their entries.
* **Metered once.** The exchange id of a line follows from the batch and the line's name. The results are read by the
  proxy itself, not from a client's download; reading them again, in any process, adds no entry.
* **Delivered is recorded.** Results are relayed, and deleted, only in the state `settled`.

The states of a batch, which are in the ledger's database (`ledger/stored_objects`):

| state | meaning | results | reserved | next |
|---|---|---|---|---|
| `creating` | the request to make it was sent | – | yes | its answer, or the watcher: `running`, or deleted |
| `running` | the provider has made it | held back | yes | it has ended, and its lines are read: `settled` |
| `settled` | every line is in the ledger | relayed | spent | deleted after 90 days, or by the client |
| `lost` | the provider has no batch or results any more | never | no | deleted after 90 days |

The reservation is that of an exchange that has ended and whose entry the ledger does not have yet, at its quote: it
outlives the process and the machine that made it, counts for no rate and no parallel limit, and is released when the
budgets have seen the batch's own entry, which is written after those of its lines. A process that starts, or takes over
from another one, announces the batches that it polls.

`lines_in` checks lines, `creating` admits and makes a batch, `watcher` polls it, `settling` reads the results and
`records` makes the records; `files` and `batches` answer clients, `listing` makes their lists.
"""
