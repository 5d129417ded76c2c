"""Alembic's environment. Invariant: the caller passes the connection, inside the transaction of the upgrade."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
