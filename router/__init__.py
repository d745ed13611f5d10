"""Homing: a cache-aware router for fleets of vLLM replicas.

Words that every name, metric and log line uses, and no synonym of them:

replica    one inference server with its own KV cache; its id survives restarts
fleet      the replicas behind one router deployment
block      a fixed run of prompt bytes (512), the unit in which prompts are compared
chain      a prompt's block hashes; hash i commits to every byte before block i ends
root       what a chain starts from: model, adapter, salts, template arguments
resident   believed to be in a replica's prefix cache
holder     a replica where a leading part of this chain is resident, and how deep
home       the replica that the consistent-hash ring gives a key
backlog    uncached prompt tokens dispatched that have not reached their first output token
spill      another replica than the deepest holder (or the home) because of load
lease      one request's hold on one replica
ask        what routing needs to know of one request
epoch      a replica's life; old residency dies with it

Reading order: ARCHITECTURE.md, core/types.py, core/policy.py, core/fleet.py, proxy/exchange.py, app.py.
"""
