"""The core: which replica gets this ask. Pure: no await, no clock, no I/O, no logging, no randomness of its own.

types      the nouns                              policy     Policy and `prefix_affinity`, the default
prompt     parsed request -> root, prompt bytes   baselines  the policies to compare with
blocks     bytes -> chain                         residency  who is believed to hold which chain
ring       key -> order of replicas               backlog    load per replica, and what is learned of it
recent     the window of recent requests          member     one replica: load, state, what its engine says
fleet      the one mutable object: views, leases   lease      one request's hold on one replica
explain    a decision, laid open
record     what is known of a finished request   segments   chains as a tree, for residency and recent
ranking    who may score least in a large fleet

Whoever calls hands in `now` (monotonic seconds) and an `rng`. Nothing awaits between a view and the lease that
follows from it, which is why there are no locks and no copies.
"""
