"""Which tests of the bench are collected."""

import sys

# Since Python 3.12, comprehensions and some calls of C are counted otherwise than the table does.
collect_ignore = ["test_calls.py"] if sys.version_info >= (3, 12) else []
