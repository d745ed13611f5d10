"""The data plane: HTTP/1.1 between clients and replicas. Knows HTTP, knows no policy.

wire      sans-IO: bytes -> requests and responses, heads out    openai    endpoint table; body -> Ask
server    client connections                                     upstream  replica connections and their pools
exchange  one request's life: route, lease, send, retry          relay     pumps one response to its client
waiting   the FIFO for asks that every replica's limits cut      journal   what happened to a request -> its record
context   what every exchange of a worker uses                   answers   what the router answers itself
clients   the open ones, and the sweep for what is late          bounds    how much, how long: plain values
tries     whether a request may be sent once more                local     what needs no replica
explaining   a decision as JSON                                  shapes    the JSON that the router reads

Protocols and callbacks, not coroutines: a request that finds an idle connection to its replica makes no task.
"""
