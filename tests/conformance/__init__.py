"""HTTP/1.1 as bytes on sockets: what the router takes, what it refuses, and what the other side gets for it.

`standin` is a replica that takes down every byte, `raw` the client and the form of a case. The cases are data in the
test files, each named as a sentence with the section of the RFC that it holds the router to; docs/http.md has the
table of what is accepted and refused. `corpora` runs other projects' requests against the same listener.
"""
