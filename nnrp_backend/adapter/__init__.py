"""The worker's side of NNRP: operations in, an engine's tokens out.

`engine` is the interface to whatever generates tokens; `sim` and `vllm` implement it.
`adapter` turns one NNRP operation into one engine request and its answer into profile events.
`worker` composes engine, adapter, NNRP server and admin port into one process.
"""
