"""What runs around the gateway's event loop: its process, its admin port, its child workers."""
