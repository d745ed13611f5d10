"""Tests of the admin port: what is counted, how it is exposed, what it answers, what it logs."""
