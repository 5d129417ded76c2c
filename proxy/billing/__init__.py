"""From usage to money. Pure: integers and values only; no clock, no I/O."""
