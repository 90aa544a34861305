"""Prove, over the wire, that an endpoint speaks `openai-compatible/1`.

A *recipe* says what to ask and what must come back (`recipe`); the *plan* is the recipes that the
target claims to serve (`plan`); the *runner* plays each case on a connection of its own and keeps
what came off the wire (`runner`, `recording`); the *checker* judges that against the recipe
(`expectations`) and against the rules that hold for every answer (`rules`); the *report* says it to
a person and writes the public suite's case-results document (`report`).
"""
