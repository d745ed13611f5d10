"""Set-ups that take half a minute to come up: `make smoke`, and no part of `make test`."""
