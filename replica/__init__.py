"""The simulated replica: a vLLM stand-in that needs no GPU, no weights and no tokenizer files.

Words, beside those of `router/__init__.py`:

engine block   the engine's own run of tokens (16 by default), the unit of its prefix cache
name           the chained hash of a full engine block; it commits to every token before the block ends
work           one request as the engine sees it: how many tokens come in and go out, and the names of its blocks
step           one forward pass over a batch of prefill chunks and decodes; time passes only in steps
profile        how long a step takes on one model and GPU, with the source of each constant
fault          a way to fail that a test switches on

Reading order: `kvcache` and `engine` are pure (no clock, no I/O) and also serve the discrete-event simulator;
`profiles` and `tokens` feed them; `driver` runs an engine in real time. From outside it looks like vLLM: bodies come
in through `openai_requests`, `conversations` and `template`; `serving` takes them through the driver; `handlers`,
`responses`, `pooling` and `control` are its endpoints, `answers` and `*_answers` their shapes, `prometheus` its
metrics, `faults` its failures, `generations` what it tells of its work. `server` builds and starts it all.
"""
