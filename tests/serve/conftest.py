"""Server fixtures, from the server's bench, which is imported from the repository."""

import sys
from pathlib import Path

# At the end, so that an installed jspec stays the one that is tested.
sys.path.append(str(Path(__file__).resolve().parents[2]))
