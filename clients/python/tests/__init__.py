"""The tests of the Python client. They start their own servers, on the loop's time: it need not complain that this is
slow.
"""

import logging

logging.getLogger("asyncio").setLevel(logging.ERROR)
# What the client says of the trouble that the tests make is looked at by tests of its own.
logging.getLogger("solehold_client").addHandler(logging.NullHandler())
