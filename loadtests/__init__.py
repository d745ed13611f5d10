"""Load tests: work that can be proven equal, a client that can be trusted, figures that can be recomputed.

workload   who asks what and when; seeded, pure (`workloads`), or made from a Mooncake trace (`traces`)
session    requests of a workload that follow one another, closed loop
record     what the client saw of one request (`records`); every figure comes from records and nothing else
arm        one policy (or target) on the work; a comparison gives each arm a fresh fleet and the same workload
ceiling    the hit ratio of one infinite cache over the same prompts (`ceiling`)
report     the arms' figures in one format, `homing.report/1` (`report`)

play       a workload without texts, for the simulator: prompts as names of engine blocks (`plays`, `plays_made`,
           `trace_plays`)
simulation a play through the production core and simulated engines on a hand-turned clock (`simulation`)
row        what one simulated run came to (`sim_rows`)
change     what happens to a simulated fleet amid a play (`simulation`); an event is one as it is written (`sim_events`)

stand-in   a replica that costs nothing (`standin.c`): what proxies are measured in front of
cell       one kind of work on one proxy, and the one number that comes of it (`bench_cells`)

Read in this order: workloads, traces; answer, client, records; report, ceiling; processes, fleet, compare, demo.
What a policy or a setting is worth: plays, plays_made, trace_plays; clock, sim_replica, sim_router, sim_gossip,
simulation; sim_rows, sim_report, sim_plot, simulate.
What changes of a fleet cost: sim_snapshot, sim_events, sim_around; placement, recovery, changes_cells, changes.
What the router itself costs: native, meter; bench_arms, bench_cells, bench_report; bench_proxy; bench_stages,
bench_profile.
What it costs in the long run and beside a scrape: standins, paced; scrape, soak.
How it routes in special cases: hot_prefix (one prefix for all), two_workers (two processes beside one), joins (a
replica that comes empty).
Whether several routers decide as one: redisserver, multirouter_bed, multirouter_run, multirouter; snapshot (one that
joins); spread (how even chats can be); what that costs them: gossip_cost_bed, gossip_cost.
What a failing replica costs: chaos_client, chaos_rows, chaos.
Locust is apart: `locustfile` holds its users and is never imported, `locust_compare` runs it as a process.
"""
