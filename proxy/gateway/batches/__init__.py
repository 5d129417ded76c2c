"""Files and batches at providers: passed through, owned, reserved for, and metered line by line.

Files and batches are objects that a provider keeps. They are no exchanges, but what a batch generates is: each line
that was answered becomes one entry, at the price of the tier `batch`, and the batch itself one entry that costs
nothing and tells what became of its lines.

Invariants:

* **Owned.** An object exists for the key that made it and for the keys of its project (not the default one), for as
  long as it exists at the provider: its owner is in the ledger's database. It is asked for at the provider, and with
  the credential, that made it.
* **Bounded.** A batch is admitted only if every line of it was read and checked like a request of its own. The sum of
  what the lines may cost is reserved before the provider is asked, and stays reserved until the ledger has them all.
* **Metered once.** The exchange id of a line follows from the batch and the line's name. The results are read by the
  proxy itself, not from a client's download; whoever reads them again, in whatever process, adds nothing.
* **Delivered is recorded.** Results are passed on, and deleted, only in the state `settled`.

The states of a batch, which are in the ledger's database (`ledger/stored_objects`):

| state | what is known | results | reserved | next |
|---|---|---|---|---|
| `creating` | the provider was asked to make it | – | yes | its answer, or the watcher: `running`, or forgotten |
| `running` | the provider's id | held back | yes | it has ended, and its lines are read: `settled` |
| `settled` | every line is in the ledger | passed on | spent | forgotten after 90 days, or deleted |
| `lost` | the provider has no batch or results any more | never | no | forgotten after 90 days |

The reservation is that of an exchange that has ended and whose entry the ledger does not have yet, at its quote: it
outlives the process and the machine that made it, counts for no rate and no parallel limit, and is released when the
budgets have seen the batch's own entry, which is written after those of its lines. A process that starts, or takes over
from another one, announces the batches that it asks for.

`lines_in` checks lines, `creating` admits and makes a batch, `watcher` asks for it, `settling` reads the results and
`records` makes the records; `files` and `batches` answer clients, `listing` their lists.
"""
