"""`python -m proxy` is the command `tokenweir`."""

from proxy.cli import main

raise SystemExit(main())
