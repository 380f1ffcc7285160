"""Delivery: what lies in an outbox reaches its receiver. The engine's plugin and the node both use it."""
