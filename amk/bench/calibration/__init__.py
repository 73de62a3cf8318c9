"""Measurements that the simulator's constants come from."""
