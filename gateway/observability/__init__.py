"""What the gateway tells about itself: metrics, and the heartbeat of its event loop."""
