"""Tests of the data plane: sans-IO units against every split, the relay, queues and pools, and all of it on sockets."""
