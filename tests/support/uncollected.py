"""Imported first by the process that others are copies of: its garbage collector looks at nothing that is imported
next. tests/support/frozen.py, imported last, enables it again."""

from __future__ import annotations

import gc

gc.disable()
