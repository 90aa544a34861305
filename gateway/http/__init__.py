"""The gateway's HTTP edge: routes, middleware, and the response that streams tokens."""
