"""Grafana's dashboards, as code. `python -m grafana` writes dashboards/*.json. Tests compare these files with the
code, and run the queries of every panel on a real Prometheus and a real Postgres.
"""
