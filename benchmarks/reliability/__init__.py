"""The figures of docs/reliability.md: what the service costs and how soon it recovers."""
