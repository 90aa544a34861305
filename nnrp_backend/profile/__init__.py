"""The `openai-compatible/1` profile of NNRP: JSON meanings, without wire, HTTP or engine.

Both sides use:

- `operations`: names of the operations and of the profile itself
- `errors`: `ProfileError` and its codes
- `envelope`: what a submit carries
- `events`: what an operation answers, encoded, decoded and checked
- `tool_calls`: tool-call events, their two shapes and their order
- `capabilities`: what a worker offers, as the capability document and the conformance manifest
- `normalize`: the serving-adapter policy for request bodies

From an engine's answer to the profile's:

- `chunks`: a stream of chat chunks becomes events, and each chunk is made final on the way
- `completion`: a whole chat completion is made final
- `choices`, `assembly`, `shapes`: parts of `chunks` (one choice; the rebuilt answer; the fast path)
- `finality`, `decoding`: what final means, and how broken JSON is read
"""
