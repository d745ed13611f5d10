"""Tests of the core: golden values, naive models, statistics with a seed and a hand-turned clock."""
