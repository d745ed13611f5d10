"""The admin port: what operators and orchestrators ask. Never on a request's path, but for two calls that only count.

api         its handlers: /livez, /startupz, /readyz, GET /fleet, /metrics, POST /explain
checks      what the probes check     report   GET /fleet     build   homing_build_info
metrics     the catalogue and the exposition, the only file that knows prometheus
tally       counts finished requests (on the path: a look-up and additions), probes and changes of state
histogram   counts by bucket          labels   how many values a label may have
counts      the tally as rows         gauges   the fleet as rows
lag         samples how late the event loop is
requestlog  one JSON line for each request (on the path: one append)
"""
