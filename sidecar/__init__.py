"""The sidecar package: reads an A2A task store as sessions and serves them; `app.create_app` is its public door."""
