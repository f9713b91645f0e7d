"""python -m everyhead."""

import sys

from everyhead.cli.app import main

sys.exit(main())
