"""Grafana's dashboards, as code. `python -m grafana` writes dashboards/*.json; a test holds the two together, and asks
every panel's question of a real Prometheus and a real Postgres.
"""
