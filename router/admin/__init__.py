"""The admin port: what operators and orchestrators ask. Never on a request's path.

api    /livez, /readyz, GET /fleet    metrics    /metrics, the only file that knows prometheus
"""
