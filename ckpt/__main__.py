"""`python -m ckpt`."""

from .cli import main

raise SystemExit(main())
