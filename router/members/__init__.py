"""Who is in the fleet, and how each member is.

engine    an engine's /metrics -> the few numbers that routing uses     health    probes, and what they change
"""
