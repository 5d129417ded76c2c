"""The shipping, settling, leasing and sweeping code on a virtual clock, under seeded faults: a failing seed replays."""
