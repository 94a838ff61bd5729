"""The tests of the Python client. They start their own servers, on the loop's time: it need not complain that this is
slow.
"""

import logging

logging.getLogger("asyncio").setLevel(logging.ERROR)
