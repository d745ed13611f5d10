"""The admin port: what operators and orchestrators ask. It is the supervisor's, so never on a request's path, but for
two things that a worker does with each finished request: `requestlog` and `lag`.

api         its handlers: /livez, /startupz, /readyz, GET /fleet, /metrics, POST /explain, /reload, /drain, /undrain
checks      what the probes check     report   GET /fleet     build   homing_build_info
metrics     the catalogue and the exposition, the only file that knows prometheus
tally       counts finished requests, probes and changes of state     reports   what workers report at a scrape
histogram   counts by bucket          labels   how many values a label may have
counts      the tally as rows         gauges   the fleet as rows
lag         samples how late the event loop is
requestlog  one JSON line for each request (on the path: one append)
"""
