"""What the service costs and how soon it recovers: the figures of docs/reliability.md."""
