"""Measurements that settings and rules of ours were chosen by."""
