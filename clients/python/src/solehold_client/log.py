"""The package's logger, `solehold_client`. It says what this client handles by itself, once, and never shows a key.

WARNING: a server or a lease is lost. INFO: sessions, elections, and recoveries. DEBUG: leases, and every request.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("solehold_client")
