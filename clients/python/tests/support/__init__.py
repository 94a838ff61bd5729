"""What the tests are built on: virtual time, a model of the authority behind a bad network, and real servers."""
