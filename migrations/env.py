"""What Alembic runs. Law: the caller brings the connection, inside the one transaction that is the upgrade."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
