"""Tests of the configuration: reading it, telling what is wrong with it, and its manual."""
