"""Imported last by the process that others are copies of: what it has imported stays as it is. The copies' collectors
need not look at it, nor copy its pages."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
