"""Many small networks in one compiled loop."""
