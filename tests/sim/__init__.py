"""Tests of the load tests: workloads, traces, report, client, processes, demo."""
