import sys

from geowidth.cli import main

sys.exit(main())
