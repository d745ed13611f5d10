"""News between routers: best effort, never awaited, never on a request's path (invariant 4).

messages   what is said, and its form on the wire
channel    one connection: frames in and out, bounded, drops and counts what a peer does not take
hub        the supervisor's end of all its workers' channels: passes the news of each on to the others
news       a worker's end: tells its load, placements and what it has learned, and hears the others'
reporter   a worker's records of finished requests, in batches, up to the supervisor
link       one router's end of the line to the other routers; the supervisor has it
outgoing   what it tells them: its workers' news, summed and merged
incoming   what of theirs it takes, and who is there
numbered   what is told once, heard once: both ends' count of it
seal       what goes between hosts is signed and versioned
snapshot   who holds which prefix, compactly, for whoever joins
lines      what carries it: redis, or memory within one process
talk       the news of one session with redis
"""
