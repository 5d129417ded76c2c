"""What requests in the further dialects look like."""

from __future__ import annotations

ASKED = {"messages": [{"role": "user", "content": "How much water goes over the weir?"}]}
